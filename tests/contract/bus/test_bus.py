"""What everybody relies on of the bus, whoever carries the messages."""

from datetime import timedelta

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.bus.auth import anonymous, issued
from remuda.bus.client import Bus
from remuda.bus.messages import Connected, Down, Incoming, NoResponders, RequestTimedOut
from remuda.core.errors import BusRefused, BusUnusable
from remuda.core.ids import NodeId
from remuda.wire import subjects
from tests.contract.bus.conftest import Served, mint
from tests.support.nats_servers import CLOCK, until_down
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OURS = NodeId("0b1c6a5e-0000-4000-8000-000000000001")
THEIRS = NodeId("0b1c6a5e-0000-4000-8000-000000000002")
SOON = timedelta(seconds=10)


async def echo(message: Incoming) -> None:
    assert message.respond is not None
    await message.respond(message.payload)


async def never(message: Incoming) -> None:
    await anyio.sleep_forever()


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []

    async def hear(self, message: Incoming) -> None:
        self.heard.append((message.subject, message.payload))


async def test_a_request_is_answered(served: Served) -> None:
    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_list(OURS), echo)
        assert await frontend.request(subjects.backend_list(OURS), b"hello", SOON) == b"hello"


async def test_a_published_message_reaches_all_who_match(served: Served) -> None:
    exact, wide, rest, other = Ear(), Ear(), Ear(), Ear()
    async with served.frontend() as bus:
        for subject, ear in (("a.b", exact), ("a.*", wide), ("a.>", rest), ("a", other)):
            await bus.subscribe(subject, ear.hear)
        await bus.publish("a.b", b"1")
        await wait_until(lambda: bool(exact.heard and wide.heard and rest.heard))
    assert exact.heard == wide.heard == rest.heard == [("a.b", b"1")]
    assert other.heard == []


async def test_nobody_listening_is_known_at_once(served: Served) -> None:
    async with served.frontend() as bus:
        with anyio.fail_after(10), pytest.raises(NoResponders, match="not connected to the bus"):
            await bus.request(subjects.backend_list(OURS), b"", timedelta(minutes=10))


async def test_a_silent_handler_times_the_request_out(served: Served) -> None:
    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_list(OURS), never)
        with pytest.raises(RequestTimedOut, match="no answer on"):
            await frontend.request(subjects.backend_list(OURS), b"", timedelta(milliseconds=50))


async def test_a_round_trip_is_answered(served: Served) -> None:
    async with served.frontend() as bus:
        assert timedelta() <= await bus.round_trip(SOON) < SOON


async def test_a_login_without_a_user_is_refused(served: Served) -> None:
    async with served.connecting(anonymous) as bus:
        assert "does not accept our credentials" in await until_down(bus)


async def test_credentials_that_ran_out_are_refused(served: Served) -> None:
    late = mint(OURS, ttl=-timedelta(seconds=5))
    async with served.connecting(issued(lambda: late)) as bus:
        assert "does not accept our credentials" in await until_down(bus)


@pytest.mark.parametrize("subject", [subjects.node_all(THEIRS), "nodes.>", "_INBOX.>", ">"])
async def test_a_worker_cannot_listen_to_what_is_not_its_own(served: Served, subject: str) -> None:
    async with served.worker(OURS) as worker:
        with capture_logs(), pytest.raises(BusRefused, match="the bus refuses the subscription to"):
            await worker.subscribe(subject, echo)


async def test_a_worker_cannot_speak_where_it_has_no_say(served: Served) -> None:
    ear = Ear()
    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await frontend.subscribe(subjects.install_progress(THEIRS, "op"), ear.hear)
        with capture_logs() as logs:
            await worker.publish(subjects.install_progress(THEIRS, "op"), b"{}")
            await worker.round_trip(SOON)
        await frontend.round_trip(SOON)
    assert ("bus_permission_refused", "publish") in [(entry["event"], entry.get("action")) for entry in logs]
    assert ear.heard == []


async def test_a_refused_request_fails_at_once(served: Served) -> None:
    async with served.worker(OURS) as worker:
        with (
            anyio.fail_after(10),
            capture_logs(),
            pytest.raises(BusRefused, match="the bus refuses the subscription"),
        ):
            await worker.request(subjects.backend_list(THEIRS), b"{}", timedelta(minutes=10))


async def test_a_revoked_user_is_hung_up_on_and_not_let_in_again(served: Served) -> None:
    minted = mint(OURS)
    async with served.connected(issued(lambda: minted)) as bus:
        await served.revoke({minted.public_key: CLOCK.now()})
        await wait_until(lambda: isinstance(bus.state, Down) and "does not accept" in bus.state.reason)


async def test_nothing_is_sent_while_the_bus_is_down(served: Served) -> None:
    minted = mint(OURS)
    async with served.connected(issued(lambda: minted)) as bus:
        await served.revoke({minted.public_key: CLOCK.now()})
        await until_down(bus)
        with pytest.raises(BusUnusable, match="the bus is down"):
            await bus.publish("a", b"")


async def test_subscriptions_stand_again_after_the_server_hung_up(served: Served) -> None:
    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_list(OURS), echo)
        served.hang_up()
        await until_down(worker)
        for bus in (worker, frontend):
            with anyio.fail_after(20):
                await bus.wait_connected()
        assert await frontend.request(subjects.backend_list(OURS), b"again", SOON) == b"again"


class SlowWorker:
    """It answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = anyio.Event(), anyio.Event()

    async def hear(self, message: Incoming) -> None:
        assert message.respond is not None
        self.asked.set()
        await self.let.wait()
        await message.respond(b"done")


async def lose_connection(bus: Bus) -> None:
    assert bus._link is not None
    await bus._link.close()


async def test_a_worker_whose_connection_blinks_still_answers(served: Served) -> None:
    slow, answers = SlowWorker(), list[bytes]()

    async def ask() -> None:
        answers.append(await frontend.request(subjects.backend_install(OURS), b"{}", timedelta(minutes=15)))

    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_install(OURS), slow.hear)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(20):
                await slow.asked.wait()
                await lose_connection(worker)
                await worker.wait_connected()
            slow.let.set()
    assert answers == [b"done"]


async def test_an_answer_given_while_the_worker_is_cut_off_is_said_when_it_is_back(served: Served) -> None:
    slow, answers = SlowWorker(), list[bytes]()

    async def ask() -> None:
        answers.append(await frontend.request(subjects.backend_install(OURS), b"{}", timedelta(minutes=15)))

    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_install(OURS), slow.hear)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(20):
                await slow.asked.wait()
            slow.let.set()
            await lose_connection(worker)
    assert answers == [b"done"]


async def test_a_request_with_patience_outlives_everybodys_connection(served: Served) -> None:
    slow, answers, gaps = SlowWorker(), list[bytes](), list[str]()

    async def ask() -> None:
        install, long = subjects.backend_install(OURS), timedelta(minutes=15)
        answers.append(await frontend.request(install, b"{}", long, on_gap=lambda: gaps.append("gap")))

    async with served.worker(OURS) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.backend_install(OURS), slow.hear)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(20):
                await slow.asked.wait()
                served.hang_up()
                await wait_until(lambda: bool(gaps))
                await frontend.wait_connected()
                await until_again(worker)
            slow.let.set()
    assert (answers, gaps) == ([b"done"], ["gap"])


async def until_again(bus: Bus) -> None:
    """Connected by another connection than at first."""
    while bus._link is None or bus._link.lost:
        await bus.changed.wait()


async def test_an_answer_outside_the_nodes_own_inbox_is_refused(served: Served) -> None:
    ear = Ear()
    async with served.worker(OURS) as worker, served.frontend() as frontend:
        for inbox in (subjects.reply(THEIRS, "f", "q"), "_INBOX.any.f.q"):
            await frontend.subscribe(inbox, ear.hear)
            with capture_logs() as logs:
                await worker.publish(inbox, b"forged")
                await worker.round_trip(SOON)
            assert "bus_permission_refused" in [entry["event"] for entry in logs]
        await frontend.round_trip(SOON)
    assert ear.heard == []


async def test_nothing_is_missed_while_credentials_are_renewed(served: Served) -> None:
    ear, held = Ear(), [mint(OURS), mint(OURS, timedelta(hours=2))]
    async with served.connected(issued(lambda: held[0])) as worker, served.frontend() as frontend:
        await worker.subscribe(subjects.node_stop(OURS), ear.hear)
        before = worker.state
        held.pop(0)
        worker.rotate()
        sent = 0
        while worker.state == before:
            await frontend.publish(subjects.node_stop(OURS), b"%d" % sent)
            sent += 1
            await frontend.round_trip(SOON)
        assert isinstance(worker.state, Connected)
        await wait_until(lambda: len(ear.heard) == sent)
    assert sorted(ear.heard) == sorted((subjects.node_stop(OURS), b"%d" % number) for number in range(sent))


# Taps.


async def test_a_tap_takes_what_is_said_until_it_is_ended(served: Served) -> None:
    taken: list[bytes] = []
    async with served.frontend() as bus:
        end = await bus.tap("a.*", lambda message: taken.append(message.payload))
        await bus.publish("a.b", b"1")
        await wait_until(lambda: bool(taken))
        await end()
        await bus.publish("a.b", b"2")
        await bus.round_trip(SOON)
    assert taken == [b"1"]


async def test_a_tap_that_fails_does_not_keep_others_from_hearing(served: Served) -> None:
    def fail(message: Incoming) -> None:
        raise ValueError

    ear = Ear()
    async with served.frontend() as bus:
        await bus.tap("a", fail)
        await bus.subscribe("a", ear.hear)
        with capture_logs() as logs:
            await bus.publish("a", b"1")
            await wait_until(lambda: bool(ear.heard))
    assert [entry["event"] for entry in logs] == ["bus_handler_failed"]


async def test_a_tap_is_carried_over_to_a_new_connection_and_not_once_it_is_ended(served: Served) -> None:
    kept: list[bytes] = []
    ended: list[bytes] = []
    async with served.frontend() as bus:
        await bus.tap("a", lambda message: kept.append(message.payload))
        end = await bus.tap("a", lambda message: ended.append(message.payload))
        await end()
        changed = bus.changed
        bus.rotate()
        await changed.wait()
        await bus.publish("a", b"1")
        await wait_until(lambda: bool(kept))
    assert (kept, ended) == ([b"1"], [])
