"""Which nodes are called back and when, and that no address however odd can end the calling."""

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from remuda.core import limits
from remuda.core.ids import BootId, MachineId
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods
from remuda.fleet.model import Dial, Node, NodeType, StoredBusTrouble
from remuda.gateway.dialer import LastDial, after_dial, call, due, with_bus_closed
from remuda.gateway.node_views import node_view
from remuda.host.ports import free_port
from remuda.wire.node_facts import worker_mark
from tests.support.nodes import NOON, THRESHOLDS, node

pytestmark = pytest.mark.anyio

MARK = worker_mark(MachineId("machine-1"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        "host:0",
        "host:99999",
        "host:port",
        ":80",
        "[::1",
        "127.0.0.1:80\r\nX-Injected: 1",
        "é" * 64 + ":80",
        "\ud800:80",
    ],
)
async def test_an_address_that_is_none_is_said_to_be_none(address: str) -> None:
    assert await call(address) == "not a HOST:PORT address"


@pytest.mark.parametrize("host", ["nobody.invalid", "a" * 64 + ".invalid", "a b.invalid", "xn--a.invalid"])
async def test_a_name_that_leads_nowhere_is_said_in_words(host: str) -> None:
    assert await call(f"{host}:80") in {"its host name cannot be resolved here", "not a HOST:PORT address"}


async def test_nobody_there_is_said_in_words() -> None:
    assert await call(f"127.0.0.1:{free_port('127.0.0.1')}") == "the connection was refused"


async def test_a_machine_that_cannot_be_reached_is_not_said_to_refuse() -> None:
    """The system refuses to connect to broadcast addresses, as it does where there is no route."""
    assert await call("255.255.255.255:80") in {"network is unreachable", "permission denied"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nX-Remuda-Worker: %s\r\n\r\n" % MARK.encode(), ""),
        (b"HTTP/1.1 200 OK\r\nX-Remuda-Worker: 0123456789abcdef\r\n\r\n", "another worker answers there"),
        (b"SSH-2.0-OpenSSH\r\n", "something else answers there"),
        (b"", "the connection was closed"),
    ],
)
async def test_who_answers_is_told_apart(answer: bytes, problem: str) -> None:
    asked: list[bytes] = []

    async def serve(stream: ByteStream) -> None:
        async with stream:
            asked.append(await stream.receive())
            if answer:
                await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        assert await call(f"127.0.0.1:{port}", MARK) == problem
        tasks.cancel_scope.cancel()
    assert asked[0].startswith(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port)


def standing_due(shown: Node, last: LastDial | None, after: timedelta = timedelta()) -> bool:
    now = NOON + after
    fleet = Fleet(now, ListeningPeriods.of([ListeningPeriod(NOON, now)]), [shown])
    standings = fleet.standings(THRESHOLDS)
    return due(standings, {} if last is None else {shown.id: last}, now) == [shown]


def test_a_node_is_called_in_each_of_its_lives() -> None:
    assert standing_due(node(), None)
    assert standing_due(node(), LastDial(BootId("an earlier boot"), NOON, answered=True))
    assert not standing_due(node(), LastDial(node().boot_id, NOON, answered=True))


def test_a_node_is_said_to_be_out_of_reach_only_after_a_while() -> None:
    shown, grace = node(), timedelta(seconds=limits.DIAL_GRACE_S)
    first = after_dial(shown, None, answered=False, now=NOON)
    assert not first.settled
    assert standing_due(shown, first), "it is called again at the next look"
    again = after_dial(shown, first, answered=False, now=NOON + grace)
    assert again.settled
    restarted = node(boot_id=BootId("boot-2"))
    assert not after_dial(restarted, again, answered=False, now=NOON + grace).settled
    assert after_dial(shown, first, answered=True, now=NOON).settled


def test_a_localai_worker_gets_time_to_open_its_file_server() -> None:
    shown, late = node(version=""), timedelta(seconds=14)
    first = after_dial(shown, None, answered=False, now=NOON)
    still = after_dial(shown, first, answered=False, now=NOON + late)
    assert not still.settled
    assert standing_due(node(version="", last_heartbeat=NOON + late), still, late), "at every look"
    assert after_dial(shown, still, answered=False, now=NOON + timedelta(seconds=30)).settled

    opened = after_dial(shown, still, answered=True, now=NOON + late)
    closed = after_dial(shown, opened, answered=False, now=NOON + late)
    ten_later = NOON + late + timedelta(seconds=limits.DIAL_GRACE_S)
    assert after_dial(shown, closed, answered=False, now=ten_later).settled, "it had answered"


def test_a_node_that_has_just_been_called_unreachable_is_called_at_every_look() -> None:
    begun, minute = NOON, timedelta(seconds=limits.DIAL_EAGER_S)
    shown = node(last_heartbeat=NOON + minute)
    lately = LastDial(shown.boot_id, begun + minute / 2, False, begun)
    assert lately.settled
    assert standing_due(shown, lately, minute / 2)
    assert not standing_due(shown, LastDial(shown.boot_id, begun + minute, False, begun), minute)


@pytest.mark.parametrize(
    ("answered", "wait_s"), [(True, limits.DIAL_EVERY_S), (False, limits.DIAL_RETRY_EVERY_S)]
)
def test_a_node_is_called_again_after_a_while(answered: bool, wait_s: float) -> None:
    wait = timedelta(seconds=wait_s)
    heard = node(last_heartbeat=NOON + wait)
    last = LastDial(heard.boot_id, NOON, answered)
    assert not standing_due(heard, last, wait - timedelta(seconds=1))
    assert standing_due(heard, last, wait)


def test_only_backend_nodes_that_are_heard_are_called() -> None:
    assert not standing_due(node(node_type=NodeType.AGENT), None)
    assert not standing_due(node(departed=True), None)
    assert not standing_due(node(approved=False), None)
    assert not standing_due(node(), None, after=THRESHOLDS.unhealthy_after)


def test_a_node_that_has_begun_not_to_answer_is_called_until_that_is_certain() -> None:
    silent_s = THRESHOLDS.unhealthy_after
    failed = after_dial(node(), None, answered=False, now=NOON + silent_s - timedelta(seconds=3))
    assert standing_due(node(), failed, after=silent_s)
    certain = after_dial(node(), failed, answered=False, now=NOON + silent_s + timedelta(seconds=8))
    assert certain.settled
    assert not standing_due(node(), certain, after=silent_s + timedelta(seconds=8))


def test_a_node_that_is_cut_off_from_the_bus_is_called() -> None:
    trouble = StoredBusTrouble(BootId("boot-1"), 2, "no answer", heard_at=NOON + timedelta(seconds=90))
    assert standing_due(node(bus_trouble=trouble), None, after=timedelta(seconds=90))


def test_a_closed_bus_connection_is_not_forgotten_until_the_node_is_heard_answers_or_starts_anew() -> None:
    soon, shown = NOON + timedelta(seconds=5), node()
    failed = LastDial(shown.boot_id, NOON, False, NOON)
    closed = with_bus_closed(failed, None, shown, lost=True)
    assert closed.left_bus_at == NOON
    again = replace(failed, at=soon)
    assert with_bus_closed(again, closed, shown, lost=False).left_bus_at == NOON
    assert with_bus_closed(again, closed, node(last_heartbeat=soon), lost=False).left_bus_at is None
    assert with_bus_closed(again, closed, node(boot_id=BootId("boot-2")), lost=False).left_bus_at is None
    answered = LastDial(shown.boot_id, soon, True)
    assert with_bus_closed(answered, closed, shown, lost=True).left_bus_at is None


@pytest.mark.parametrize(
    ("problem", "closed", "silent_s"), [("refused, and it left", True, 5), ("refused", False, 40)]
)
def test_of_a_worker_that_has_stopped_that_is_said_first(problem: str, closed: bool, silent_s: float) -> None:
    shown, now = node(drained=True), NOON + timedelta(seconds=silent_s)
    hearing = ListeningPeriods.of([ListeningPeriod(NOON, now)])
    dials = {shown.id: [Dial(shown.id, "fe-1", problem, now, bus_closed=closed)]}
    reasons = Fleet(now, hearing, [shown], dials).standing(shown, THRESHOLDS).reasons
    assert reasons[0] == (
        "its worker has stopped, its machine is off, or the network to it is down: check that machine "
        f"(127.0.0.1:50050: {problem})"
    )
    assert not any("open that port" in one for one in reasons)


def test_a_worker_that_was_heard_after_it_could_not_be_dialled_has_not_stopped() -> None:
    shown = node(last_heartbeat=NOON + timedelta(seconds=5))
    now = NOON + timedelta(seconds=5)
    hearing = ListeningPeriods.of([ListeningPeriod(NOON, now)])
    dials = {shown.id: [Dial(shown.id, "fe-1", "refused, and it left", NOON, bus_closed=True)]}
    standing = Fleet(now, hearing, [shown], dials).standing(shown, THRESHOLDS)
    assert (standing.stopped, "has stopped" in str(standing.reasons)) == ("", False)


def test_a_node_that_cannot_be_reached_stays_healthy_on_the_wire_and_is_marked_as_unreachable() -> None:
    shown = node()
    failed = Dial(shown.id, "fe-1", "no answer within 3 s", NOON)
    hearing = ListeningPeriods.of([ListeningPeriod(NOON, NOON)])
    for dials, unreachable in (({shown.id: [failed]}, True), ({}, False)):
        view = node_view(Fleet(NOON, hearing, [shown], dials).standing(shown, THRESHOLDS))
        assert view.remuda is not None
        assert (view.status, view.remuda.unreachable) == ("healthy", unreachable)
