"""Frontends tell each other of the last hour: they show the same, also one that came later or was cut off."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.health import NodeStatus, Reachability, Standing
from remuda.fleet.model import Resources
from remuda.gateway.history import keeper as module
from remuda.gateway.history.exchange import HistoryPart, HistoryWanted, NodeTracks
from remuda.gateway.history.keeper import HistoryKeeper
from remuda.gateway.history.series import STEP_S, ChartFigures
from remuda.wire import subjects
from remuda.wire.codec import decode, encode
from tests.support.nodes import node
from tests.support.shared_lines import SharedLines
from tests.unit.router.frontends import HandClock

pytestmark = pytest.mark.anyio
GIB = 1 << 30
NODE = NodeId("n-1")


class Use:
    """What a frontend counts."""

    def __init__(self) -> None:
        self.held = Counter[NodeId]()
        self.written = Counter[str]()

    def in_flight(self) -> Counter[NodeId]:
        return self.held

    def tokens(self) -> Counter[str]:
        return Counter(self.written)


class Frontend:
    def __init__(self, name: str, clock: HandClock, lines: SharedLines, seen: Sequence[Standing]) -> None:
        self.use = Use()
        self.seen = seen
        self.keeper = HistoryKeeper(FrontendId(name), lambda: self.seen, self.use, lines, clock)

    def shows(self) -> ChartFigures:
        return self.keeper.of_node(NODE)


class Fleet:
    """Two frontends that look once a second, on clocks that go alike."""

    def __init__(self) -> None:
        self.clock, self.lines = HandClock(), SharedLines()
        resources = Resources(total_ram=64 * GIB, available_ram=60 * GIB)
        shown = node(id=NODE, name="gpu-1", resources=resources)
        self.seen = [Standing(shown, Reachability.UP, NodeStatus.HEALTHY, timedelta(), ())]
        self.live: list[Frontend] = []

    async def start(self, name: str) -> Frontend:
        frontend = Frontend(name, self.clock, self.lines, self.seen)
        await frontend.keeper.listen()
        self.live.append(frontend)
        return frontend

    async def pass_steps(self, steps: int) -> None:
        for _ in range(steps * STEP_S):
            self.clock.passed_s += 1
            for frontend in self.live:
                await frontend.keeper.look()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(module, "GAP_S", 0)
    return Fleet()


async def test_both_show_the_requests_of_both(fleet: Fleet) -> None:
    a, b = await fleet.start("a"), await fleet.start("b")
    a.use.held[NODE], b.use.held[NODE] = 1, 2
    await fleet.pass_steps(1)
    b.use.written["gpu-1"] = 100
    await fleet.pass_steps(2)
    assert a.shows() == b.shows()
    assert a.shows().values["in_flight"] == [3, 3, 3]
    assert a.shows().values["tokens_per_s"][-2:] == [10, 0]
    assert a.shows().values["used_ram"] == [4 * GIB] * 3


async def test_in_flight_is_the_average_over_the_step(fleet: Fleet) -> None:
    a = await fleet.start("a")
    await fleet.pass_steps(1)
    a.use.held[NODE] = 1
    for _ in range(5):
        fleet.clock.passed_s += 1
        await a.keeper.look()
    a.use.held.clear()
    for _ in range(6):
        fleet.clock.passed_s += 1
        await a.keeper.look()
    assert a.shows().values["in_flight"][-1] == 0.5


async def test_one_that_starts_later_has_the_hour_soon_also_what_an_ended_one_counted(fleet: Fleet) -> None:
    a, gone = await fleet.start("a"), await fleet.start("gone")
    gone.use.held[NODE] = 5
    await fleet.pass_steps(30)
    fleet.live.remove(gone)
    late = await fleet.start("late")
    assert not late.shows().times
    await fleet.pass_steps(2)
    assert late.shows() == a.shows()
    assert late.shows().values["in_flight"][:29] == [5] * 29


async def test_what_was_missed_while_the_bus_was_down_is_asked_for(fleet: Fleet) -> None:
    a, b = await fleet.start("a"), await fleet.start("b")
    await fleet.pass_steps(2)
    a.use.held[NODE] = 4
    fleet.lines.down = True
    await fleet.pass_steps(5)
    assert a.shows() != b.shows()
    fleet.lines.down = False
    await fleet.pass_steps(2)
    assert a.shows() == b.shows()
    assert a.shows().values["in_flight"][-6:] == [4] * 6
    asked = [one for one in fleet.lines.sent if one.subject == subjects.HISTORY_WANTED]
    firsts = [decode(HistoryWanted, one.payload).first * STEP_S for one in asked]
    assert firsts, "something was missed"
    assert min(firsts[-2:]) > fleet.clock.now().timestamp() - 100, "only what was missed is asked for"


async def test_a_lost_part_of_an_answer_is_asked_for_again(fleet: Fleet) -> None:
    a = await fleet.start("a")
    a.use.held[NODE] = 1
    await fleet.pass_steps(20)
    fleet.lines.lost.add(subjects.HISTORY_PARTS)
    late = await fleet.start("late")
    await fleet.pass_steps(1)
    assert len(late.shows().times) < 3
    fleet.lines.lost.clear()
    await fleet.pass_steps(3)
    assert late.shows() == a.shows()


async def test_what_cannot_be_read_is_left_aside(fleet: Fleet) -> None:
    a = await fleet.start("a")
    for subject in (subjects.HISTORY_STEPS, subjects.HISTORY_WANTED, subjects.HISTORY_PARTS):
        await fleet.lines.publish(subject, b"{]")
    bad = NodeTracks(node=NODE, first=0, seen=("////",) * 7)
    part = HistoryPart(frontend="x", to="a", part=0, nodes=(bad,))
    await fleet.lines.publish(subjects.HISTORY_PARTS, encode(part))
    await fleet.pass_steps(2)
    assert a.shows().values["used_ram"] == [4 * GIB] * 2


async def test_a_node_that_is_not_heard_is_a_gap_and_requests_to_it_are_not(fleet: Fleet) -> None:
    a = await fleet.start("a")
    await fleet.pass_steps(1)
    a.seen, a.use.held[NODE] = (), 1
    await fleet.pass_steps(2)
    assert a.shows().values["used_ram"][-1] is None
    assert a.shows().values["in_flight"][-1] == 1
