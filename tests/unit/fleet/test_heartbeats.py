"""Heartbeats are written in groups; what is wrong with one is not held against the others."""

from collections.abc import Sequence
from datetime import timedelta

import anyio
import pytest

from remuda.core import limits
from remuda.core.errors import Invalid, NotFound, RemudaError, StoreUnusable, Unauthorized, Unavailable
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.admission import Beat, HeartbeatOutcome
from remuda.fleet.health import Fleet, ListeningPeriods
from remuda.fleet.heartbeats import HeartbeatIntake, Listener
from remuda.fleet.identity import CallerIdentity
from remuda.fleet.model import StoredReport
from remuda.fleet.ports import Note, ReportSignal
from tests.support.nodes import NOON, THRESHOLDS, beat, node
from tests.support.virtual_loop import run_virtually

pytestmark = pytest.mark.anyio

GOOD, UNKNOWN, UNWRITABLE = beat(NodeId("good")), beat(NodeId("unknown")), beat(NodeId("unwritable"))
IMPOSTOR = Beat(NodeId("good"), CallerIdentity(source="10.0.0.66", shared=True))


class Beats:
    """Takes beats, all of a group or none, as the database does."""

    def __init__(self, trouble: RemudaError | None = None) -> None:
        self.groups: list[list[Beat]] = []
        self._trouble = trouble

    async def beat(self, beats: Sequence[Beat]) -> list[HeartbeatOutcome]:
        if self._trouble is not None:
            raise self._trouble
        if UNWRITABLE in beats:
            raise Invalid("a text in it cannot be stored")
        self.groups.append(list(beats))
        outcomes = {id(UNKNOWN): HeartbeatOutcome.STRANGE, id(IMPOSTOR): HeartbeatOutcome.UNPROVEN}
        return [outcomes.get(id(beat), HeartbeatOutcome.TAKEN) for beat in beats]


async def sent(store: Beats, *beats: Beat, signal: ReportSignal | None = None) -> list[str]:
    """What became of each, when all of them were waiting before the first was written."""
    intake = HeartbeatIntake(store, signal)  # type: ignore[arg-type]  # All that it uses of a FleetStore.
    outcomes = [""] * len(beats)

    async def send(index: int, beat: Beat) -> None:
        try:
            await intake.take(beat)
            outcomes[index] = "written"
        except RemudaError as error:
            outcomes[index] = type(error).__name__

    async with anyio.create_task_group() as tasks:
        for index, beat in enumerate(beats):
            tasks.start_soon(send, index, beat)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(intake.run)
        with anyio.fail_after(10):
            while not all(outcomes):
                await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return outcomes


async def test_what_waits_together_is_written_together() -> None:
    store = Beats()
    assert await sent(store, GOOD, GOOD, GOOD) == ["written"] * 3
    assert store.groups == [[GOOD, GOOD, GOOD]]


def test_what_comes_soon_after_a_group_is_gathered_and_what_comes_alone_waits_for_nobody() -> None:
    gathered_s = limits.HEARTBEATS_GATHER_S

    async def told() -> tuple[list[list[Beat]], float]:
        store = Beats()
        intake = HeartbeatIntake(store)  # type: ignore[arg-type]  # All that it uses of a FleetStore.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(intake.run)
            await intake.take(GOOD)
            for _ in range(3):
                tasks.start_soon(intake.take, GOOD)
                await anyio.sleep(gathered_s / 4)
            await anyio.sleep(2 * gathered_s)
            began_s = anyio.current_time()
            await intake.take(GOOD)
            waited_s = anyio.current_time() - began_s
            tasks.cancel_scope.cancel()
        return store.groups, waited_s

    groups, waited_s = run_virtually(told)
    assert ([len(group) for group in groups], waited_s) == ([1, 3, 1], 0)


async def test_an_unknown_node_is_told_so_and_no_other() -> None:
    assert await sent(Beats(), GOOD, UNKNOWN, GOOD) == ["written", NotFound.__name__, "written"]


async def test_another_machines_heartbeat_beside_the_nodes_own_is_refused_alone() -> None:
    assert await sent(Beats(), GOOD, IMPOSTOR, GOOD) == ["written", Unauthorized.__name__, "written"]


async def test_callers_that_proved_nothing_leave_room_for_those_that_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remuda.core.limits.HEARTBEATS_WAITING_MAX", 4)
    refused: list[str] = []

    async def send(intake: HeartbeatIntake, beat: Beat) -> None:
        try:
            await intake.take(beat)
        except Unavailable as error:
            refused.append(error.message)
        except Unauthorized:
            pass

    intake = HeartbeatIntake(Beats())  # type: ignore[arg-type]
    intake._proven[GOOD.node_id] = GOOD.caller
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(send, intake, IMPOSTOR)
        await anyio.wait_all_tasks_blocked()
        assert len(refused) == 2, "half of the places, and the one who found it full"
        tasks.start_soon(send, intake, GOOD)
        await anyio.wait_all_tasks_blocked()
        assert len(refused) == 2
        tasks.start_soon(intake.run)  # For it closes what it waits on.
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_caller_that_speaks_for_the_node_no_more_is_not_taken_for_it_any_longer() -> None:
    intake = HeartbeatIntake(Beats())  # type: ignore[arg-type]
    intake._proven[IMPOSTOR.node_id] = IMPOSTOR.caller
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        with pytest.raises(Unauthorized):
            await intake.take(IMPOSTOR)
        assert not intake.has_heard(IMPOSTOR.node_id, IMPOSTOR.caller)
        tasks.cancel_scope.cancel()


async def test_a_heartbeat_that_cannot_be_written_fails_alone() -> None:
    outcomes = await sent(Beats(), GOOD, UNWRITABLE, UNKNOWN, GOOD)
    assert outcomes == ["written", Invalid.__name__, NotFound.__name__, "written"]


async def test_a_store_that_does_not_answer_fails_the_group() -> None:
    assert await sent(Beats(StoreUnusable("gone")), GOOD, GOOD) == [StoreUnusable.__name__] * 2


class SignalsTo:
    def __init__(self, news: list[str]) -> None:
        self._news = news

    def notify(self) -> None:
        self._news.append("news")


def reporting(body: str, sequence: int) -> Beat:
    return beat(NodeId("good"), report=StoredReport(BootId("boot"), sequence, body))


async def test_a_report_is_news_only_when_it_tells_something_else() -> None:
    news: list[str] = []
    same = [reporting('{"work":[]}', sequence) for sequence in (1, 2, 3)]
    intake = HeartbeatIntake(Beats(), SignalsTo(news))  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        for beat in [GOOD, *same]:
            await intake.take(beat)
        assert news == ["news"]
        await intake.take(reporting('{"work":[{"op_id":"x"}]}', 4))
        assert news == ["news", "news"]
        tasks.cancel_scope.cancel()


class Fleets:
    """One node that was heard at noon, as it is seen later and later."""

    def __init__(self) -> None:
        self.now = NOON
        self.node = node(departed=True)
        self.notes: list[str] = []

    async def listen(self, frontend: FrontendId, *, resumed: bool) -> None:
        pass

    async def fleet(self) -> Fleet:
        return Fleet(self.now, ListeningPeriods(), [self.node])

    async def note_outages(self, notes: Sequence[tuple[NodeId, Note]]) -> None:
        self.notes += [note.event for _, note in notes]


async def test_an_outage_of_half_a_minute_is_noted_when_it_begins_and_ends() -> None:
    store = Fleets()

    async def bus_answers() -> None:
        pass

    listener = Listener(FrontendId("fe-1"), store, bus_answers, THRESHOLDS, lambda _: None)  # type: ignore[arg-type]
    seen: list[list[str]] = []
    for seconds, departed in ((1, True), (40, True), (50, True), (51, False)):
        store.now, store.node = NOON + timedelta(seconds=seconds), node(departed=departed)
        await listener.listen_once()
        seen.append(list(store.notes))
    assert seen == [[], ["offline"], ["offline"], ["offline", "online"]]
