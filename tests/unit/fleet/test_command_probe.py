"""Whether commands reach a node's worker is asked over the bus: heartbeats come by another way."""

from datetime import timedelta

import pytest

from remuda.core import limits
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.command_probe import CommandProber, LastProbe, ProbeReply, after_probe, due, not_subscribed
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods, NodeStatus, Standing
from remuda.fleet.model import CommandProbe, Node, NodeType, StoredBusTrouble
from tests.support.nodes import NOON, THRESHOLDS, node

pytestmark = pytest.mark.anyio
LATER = NOON + timedelta(seconds=1)


def standing(shown: Node, *probes: CommandProbe, silent_s: float = 0) -> Standing:
    now = NOON + timedelta(seconds=silent_s)
    fleet = Fleet(now, ListeningPeriods.of([ListeningPeriod(NOON, now)]), [shown], probes={shown.id: probes})
    return fleet.standing(shown, THRESHOLDS)


def probe(problem: str, frontend: str = "fe-1") -> CommandProbe:
    return CommandProbe(NodeId("node-1"), frontend, problem, NOON)


def is_due(shown: Node, last: LastProbe | None = None, after_s: float = 0) -> bool:
    known = {} if last is None else {shown.id: last}
    return due([standing(shown)], known, NOON + timedelta(seconds=after_s)) == [shown]


def test_a_node_whose_worker_nobody_finds_on_the_bus_is_unhealthy_and_says_why() -> None:
    found = standing(node(), probe("its worker is elsewhere"))
    assert found.status is NodeStatus.UNHEALTHY
    assert found.reasons == ("its worker is elsewhere",)
    assert found.uncommandable == "its worker is elsewhere"


def test_a_frontend_that_alone_cannot_find_a_worker_has_trouble_of_its_own() -> None:
    found = standing(node(), probe("its worker is elsewhere"), probe("", "fe-2"))
    assert (found.status, found.reasons) == (NodeStatus.HEALTHY, ())


def test_a_worker_of_ours_is_connecting_until_its_first_report() -> None:
    found = standing(node(report=None))
    assert (found.status, found.uncommandable) == (NodeStatus.UNHEALTHY, "")
    assert found.reasons == ("its worker is connecting to the bus",)
    assert standing(node(version="")).status is NodeStatus.HEALTHY, "a peer reports nothing"


def test_a_worker_that_waits_for_approval_is_said_to_wait_for_that_alone() -> None:
    waiting = "waiting for approval: remuda nodes approve gpu-1"
    cut_off = StoredBusTrouble(BootId("boot-1"), 1, "no route")
    for shown in (node(report=None, approved=False), node(report=None, approved=False, bus_trouble=cut_off)):
        found = standing(shown, probe("its worker is elsewhere"))
        assert (found.status, found.reasons, found.uncommandable) == (NodeStatus.PENDING, (waiting,), "")
    unheard = standing(node(report=None, approved=False), silent_s=60)
    assert unheard.reasons[0] == waiting
    assert unheard.reasons[1].startswith("no heartbeat for 60 s")


@pytest.mark.parametrize(("silent_s", "status"), [(30, NodeStatus.UNHEALTHY), (60, NodeStatus.OFFLINE)])
def test_a_node_that_is_not_heard_is_not_said_to_be_on_another_bus(silent_s: int, status: NodeStatus) -> None:
    found = standing(node(), probe("its worker is elsewhere"), silent_s=silent_s)
    assert (found.status, found.uncommandable) == (status, "")
    assert [reason.split(";")[0] for reason in found.reasons] == [f"no heartbeat for {silent_s} s"]


def unheard(*heartbeats_s: float) -> list[bool | None]:
    """Whether the worker counts as reached after each of several probes, 10 s apart, without a subscriber.
    The probes see these latest heartbeats."""
    last: LastProbe | None = None
    found = []
    for number, heartbeat_s in enumerate(heartbeats_s):
        asked = node(last_heartbeat=NOON + timedelta(seconds=heartbeat_s))
        last = after_probe(asked, last, ProbeReply.NO_RESPONDERS, NOON + timedelta(seconds=10 * number))
        found.append(last.reached)
    return found


def test_a_worker_whose_heartbeats_go_on_and_that_nobody_finds_on_the_bus_is_not_reached() -> None:
    assert unheard(-1, 9, 19) == [None, None, False]
    assert unheard(-1, -1, 19, 19, 39) == [None, None, None, None, False], "heartbeats rarer than probes"


def test_a_worker_that_sent_no_heartbeat_since_it_was_asked_is_not_judged() -> None:
    assert unheard(-1, -1, -1, -1) == [None] * 4, "killed, or asleep"
    assert unheard(-1, 9, 9, 9, 9) == [None] * 5, "one heartbeat was under way"


def test_an_answer_clears_the_probes_that_nobody_heard() -> None:
    lost = LastProbe(BootId("boot-1"), NOON, limits.PROBES_UNHEARD, False, NOON)
    answered = after_probe(node(), lost, ProbeReply.ANSWERED, LATER)
    assert answered == LastProbe(BootId("boot-1"), LATER, 0, False)
    assert answered.reached is True


def test_a_worker_that_does_not_answer_in_time_is_not_judged() -> None:
    heard = LastProbe(BootId("boot-1"), NOON, 0, True)
    assert after_probe(node(), heard, ProbeReply.UNKNOWN, LATER) == LastProbe(
        BootId("boot-1"), LATER, 0, True
    )


def test_what_an_earlier_boot_answered_says_nothing() -> None:
    lost = LastProbe(BootId("boot-0"), NOON, 5, False)
    assert after_probe(node(), lost, ProbeReply.NO_RESPONDERS, NOON) == LastProbe(
        BootId("boot-1"), NOON, 1, None, NOON
    )


def test_nodes_are_asked_in_each_boot_and_then_once_in_a_while() -> None:
    answered = LastProbe(BootId("boot-1"), NOON, 0, True)
    assert is_due(node())
    assert is_due(node(boot_id=BootId("boot-2")), answered)
    assert not is_due(node(), answered, limits.PROBE_EVERY_S - 1)
    assert is_due(node(), answered, limits.PROBE_EVERY_S)
    assert is_due(node(), LastProbe(BootId("boot-1"), NOON, 1)), "again at the next look"


@pytest.mark.parametrize(
    "changes",
    [
        {"node_type": NodeType.AGENT},
        {"approved": False},
        {"departed": True},
        {"report": None},
        {"bus_trouble": StoredBusTrouble(BootId("boot-1"), 1, "no answer")},
    ],
)
def test_nodes_that_cannot_be_expected_to_answer_are_not_asked(changes: dict[str, object]) -> None:
    assert not is_due(node(**changes))


def test_a_large_fleet_is_asked_in_turns() -> None:
    fleet = [standing(node(id=NodeId(f"node-{number}"))) for number in range(300)]
    first = due(fleet, {}, NOON)
    last = {one.id: LastProbe(one.boot_id, NOON, 1) for one in first}
    second = due(fleet, last, NOON)
    assert len(first) == len(second) == limits.PROBES_PER_LOOK_MAX
    assert not {one.id for one in first} & {one.id for one in second}


def test_the_reason_names_the_bus_and_the_setting_of_that_kind_of_worker() -> None:
    ours, peer = (not_subscribed(node(version=version), "nats://bus:4222") for version in ("0.1.0", ""))
    assert "nats://bus:4222" in ours
    assert "--nats-url" in ours
    assert "nats://bus:4222" in peer
    assert "LOCALAI_NATS_URL" in peer


class Probed:
    """A fleet of one node, and what a frontend writes down about it."""

    def __init__(self) -> None:
        self.reply = ProbeReply.NO_RESPONDERS
        self.steady = True
        self.alive = True
        self.now = self.heard = NOON
        self.problems: list[str] = []
        self.prober = CommandProber(
            FrontendId("fe-1"),
            self,  # type: ignore[arg-type]
            self.ask,
            steady=lambda: self.steady,
            bus=lambda: "nats://bus:4222",
            thresholds=THRESHOLDS,
        )

    async def ask(self, _: NodeId) -> ProbeReply:
        return self.reply

    async def fleet(self) -> Fleet:
        """As it is a few seconds later each time."""
        self.now += timedelta(seconds=3)
        if self.alive:
            self.heard = self.now
        return Fleet(
            self.now,
            ListeningPeriods.of([ListeningPeriod(NOON, self.now)]),
            [node(last_heartbeat=self.heard)],
        )

    async def record_probes(self, probes: list[CommandProbe]) -> None:
        self.problems += [probe.problem for probe in probes]


async def test_a_change_is_written_down_once() -> None:
    at = Probed()
    for _ in range(4):
        await at.prober.probe_once()
    assert at.problems == [not_subscribed(node(), "nats://bus:4222")]
    at.reply = ProbeReply.ANSWERED
    for _ in range(2):
        await at.prober.probe_once()
    assert at.problems[1:] == [""]


async def test_nothing_is_written_down_of_a_worker_that_was_killed() -> None:
    at = Probed()
    at.reply = ProbeReply.ANSWERED
    await at.prober.probe_once()
    at.reply, at.alive = ProbeReply.NO_RESPONDERS, False
    for _ in range(30):
        await at.prober.probe_once()
    assert at.problems == [""]


async def test_a_frontend_whose_bus_has_just_come_back_judges_nobody() -> None:
    at = Probed()
    at.steady = False
    for _ in range(3):
        await at.prober.probe_once()
    assert at.problems == []
