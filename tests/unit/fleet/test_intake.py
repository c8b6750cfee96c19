"""Heartbeats are written in groups; what is wrong with one is not held against the others."""

from collections.abc import Callable, Sequence

import anyio
import pytest

from remuda.core.errors import Invalid, NotFound, RemudaError, StoreUnusable
from remuda.core.ids import BootId, NodeId
from remuda.fleet.admission import Beat
from remuda.fleet.intake import HeartbeatIntake
from remuda.fleet.model import Report

pytestmark = pytest.mark.anyio

GOOD, UNKNOWN, UNWRITABLE = Beat(NodeId("good")), Beat(NodeId("unknown")), Beat(NodeId("unwritable"))


class Beats:
    """Takes beats, all of a group or none, as the database does."""

    def __init__(self, trouble: RemudaError | None = None) -> None:
        self.groups: list[list[Beat]] = []
        self._trouble = trouble

    async def beat(self, beats: Sequence[Beat]) -> frozenset[NodeId]:
        if self._trouble is not None:
            raise self._trouble
        if UNWRITABLE in beats:
            raise Invalid("a text in it cannot be stored")
        self.groups.append(list(beats))
        return frozenset(beat.node_id for beat in beats if beat is UNKNOWN)


async def sent(store: Beats, *beats: Beat, news: Callable[[], None] = lambda: None) -> list[str]:
    """What became of each, when all of them were waiting before the first was written."""
    intake = HeartbeatIntake(store, news)  # type: ignore[arg-type]  # All that it uses of a FleetStore.
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


async def test_an_unknown_node_is_told_so_and_no_other() -> None:
    assert await sent(Beats(), GOOD, UNKNOWN, GOOD) == ["written", NotFound.__name__, "written"]


async def test_a_heartbeat_that_cannot_be_written_fails_alone() -> None:
    outcomes = await sent(Beats(), GOOD, UNWRITABLE, UNKNOWN, GOOD)
    assert outcomes == ["written", Invalid.__name__, NotFound.__name__, "written"]


async def test_a_store_that_does_not_answer_fails_the_group() -> None:
    assert await sent(Beats(StoreUnusable("gone")), GOOD, GOOD) == [StoreUnusable.__name__] * 2


def reporting(body: str, sequence: int) -> Beat:
    return Beat(NodeId("good"), report=Report(BootId("boot"), sequence, body))


async def test_a_report_is_news_only_when_it_tells_something_else() -> None:
    news: list[str] = []
    same = [reporting('{"work":[]}', sequence) for sequence in (1, 2, 3)]
    intake = HeartbeatIntake(Beats(), lambda: news.append("news"))  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        for beat in [GOOD, *same]:
            await intake.take(beat)
        assert news == ["news"]
        await intake.take(reporting('{"work":[{"op_id":"x"}]}', 4))
        assert news == ["news", "news"]
        tasks.cancel_scope.cancel()
