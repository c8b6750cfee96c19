"""Readers of changes: they miss nothing, continue anywhere, and cost the store one reading for all."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.ids import NodeId
from remuda.ops.feed import Event, Feed
from remuda.ops.model import OpId, State, Step
from remuda.ops.ports import Filter, View
from remuda.ops.progress import LiveProgress
from tests.unit.ops.build import NOW, a_step, an_operation, running

pytestmark = pytest.mark.anyio
PATIENCE_S = 10.0


class Books:
    """Views by operation, and the reads that were made of them."""

    def __init__(self) -> None:
        self.views_by_id: dict[OpId, View] = {}
        self.newest = 0
        self.reads = 0

    def put(self, op: str, *steps: Step, finished: bool = False) -> None:
        self.newest += 1
        operation = an_operation(op, finished_at=NOW if finished else None)
        self.views_by_id[OpId(op)] = View(operation, steps, self.newest)

    async def changed_since(self, change: int, limit: int) -> tuple[Sequence[View], int]:
        self.reads += 1
        later = sorted((view for view in self.views_by_id.values() if view.change > change), key=_change)
        return later[:limit], self.newest

    async def views(self, which: Filter) -> Sequence[View]:
        views = self.views_by_id.values()
        return [view for view in views if (view.operation.finished_at is not None) == which.finished]

    async def view(self, op: OpId) -> View:
        return self.views_by_id[op]


def _change(view: View) -> int:
    return view.change


class Line:
    def __init__(self) -> None:
        self.listeners = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        self.listeners += 1
        yield
        self.listeners -= 1


class Bell:
    def __init__(self) -> None:
        self.changed = anyio.Event()
        self.live: dict[tuple[str, str], LiveProgress] = {}
        self.looks = 0

    def ring(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        self.looks += 1
        return self.live.get((op, node))


class Stand:
    def __init__(self) -> None:
        self.books, self.signal, self.board = Books(), Bell(), Bell()
        self.line = Line()
        self.feed = Feed(self.books, self.signal, self.board, self.line, SystemClock())  # type: ignore[arg-type]

    def put(self, op: str, *steps: Step, finished: bool = False) -> None:
        self.books.put(op, *steps, finished=finished)
        self.signal.ring()


@asynccontextmanager
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.feed.run)
        with anyio.fail_after(PATIENCE_S):
            yield made
        tasks.cancel_scope.cancel()


async def read(stream: AsyncIterator[Sequence[Event]], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events.extend(await anext(stream))
    return events


async def now_there(feed: Feed, place: str, op: OpId | None = None) -> list[Event]:
    return [event async for told in feed.events(place, op, timedelta()) for event in told]


def body(event: Event) -> dict[str, object]:
    decoded: dict[str, object] = json.loads(event.data)
    return decoded


async def test_a_new_reader_is_told_all_there_is_and_its_place() -> None:
    async with stand() as at:
        at.put("a", a_step(op="a"))
        at.put("b", a_step(op="b", state=State.SUCCEEDED), finished=True)
        events = await now_there(at.feed, "")
        assert [event.name for event in events] == ["snapshot", "op", "op", "ready"]
        assert [event.id for event in events] == [None, None, None, 2]


async def test_a_reader_that_comes_back_is_told_what_changed_since_and_nothing_else() -> None:
    async with stand() as at:
        for op in "abc":
            at.put(op, a_step(op=op))
        at.put("a", running(op="a"))
        events = await now_there(at.feed, "2")
        assert [(event.name, event.op, event.id) for event in events] == [("op", "c", 3), ("op", "a", 4)]


@pytest.mark.parametrize("place", ["99", "abc", "-1", "1.5", "9" * 30, "\u0663"])
async def test_a_place_that_is_not_known_means_all_there_is(place: str) -> None:
    async with stand() as at:
        at.put("a", a_step(op="a"))
        assert [event.name for event in await now_there(at.feed, place)] == ["snapshot", "op", "ready"]


async def test_another_frontend_continues_where_the_first_stopped() -> None:
    async with stand() as first:
        first.put("a", a_step(op="a"))
        place = str((await now_there(first.feed, ""))[-1].id)
        second = Stand()
        second.books = first.books
        first.put("b", a_step(op="b"))
        feed = Feed(second.books, second.signal, second.board, second.line, SystemClock())  # type: ignore[arg-type]
        assert [event.op for event in await now_there(feed, place)] == ["b"]


async def test_a_change_is_told_at_once_and_only_the_steps_that_changed() -> None:
    async with stand() as at:
        steps = [a_step(op="a", node=f"n{number}") for number in range(100)]
        await anyio.wait_all_tasks_blocked()
        news = at.feed.news
        at.put("a", *steps)
        await news.wait()  # Seen by the feed once, so that it knows what is new.
        stream = at.feed.events("")
        await read(stream, 3)
        told: list[Event] = []

        async def follow() -> None:
            told.extend(await read(stream, 1))

        async with anyio.create_task_group() as readers:
            readers.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            at.put("a", replace(steps[0], state=State.RUNNING, version=1), *steps[1:])
        assert (body(told[0])["whole"], told[0].id) == (False, 2)
        assert [step["node_id"] for step in body(told[0])["steps"]] == ["n0"]  # type: ignore[attr-defined]


async def test_one_operation_can_be_followed_alone() -> None:
    async with stand() as at:
        at.put("a", a_step(op="a"))
        at.put("b", a_step(op="b"))
        stream = at.feed.events("", OpId("b"))
        assert [event.op for event in await read(stream, 3)] == ["b", "b", "b"]
        at.put("a", running(op="a"))
        at.put("b", running(op="b"))
        [told] = await read(stream, 1)
        assert (told.op, told.id) == ("b", 4)


async def test_progress_is_told_without_a_place() -> None:
    async with stand() as at:
        at.put("a", running(op="a"))
        await anyio.wait_all_tasks_blocked()
        news = at.feed.news
        at.put("a", running(op="a"))
        await news.wait()
        stream = at.feed.events("2")
        at.board.live["a", "node-1"] = LiveProgress(1, fraction=0.5)
        at.board.ring()
        [tick] = await read(stream, 1)
        assert (tick.name, tick.id, body(tick)["op"]) == ("progress", None, "a")


async def test_progress_is_listened_to_while_anybody_reads() -> None:
    async with stand() as at:
        first, second = at.feed.events(""), at.feed.events("")
        await anext(first)
        await anext(second)
        await anyio.wait_all_tasks_blocked()
        assert at.line.listeners == 1
        for stream in (first, second):
            await stream.aclose()  # type: ignore[attr-defined]
        await anyio.wait_all_tasks_blocked()
        assert at.line.listeners == 0


async def test_many_readers_cost_the_store_one_reading() -> None:
    async with stand() as at:
        at.put("a", a_step(op="a"))
        streams = [at.feed.events("1") for _ in range(20)]
        told: list[Event] = []

        async def follow(stream: AsyncIterator[Sequence[Event]]) -> None:
            told.extend(await read(stream, 10))

        async with anyio.create_task_group() as readers:
            for stream in streams:
                readers.start_soon(follow, stream)
            await anyio.wait_all_tasks_blocked()
            before = at.books.reads
            for number in range(10):
                at.put(f"op-{number}", a_step(op=f"op-{number}"))
        assert len(told) == 200
        assert at.books.reads - before < 20


async def test_nothing_is_rendered_before_there_are_readers_and_none_misses_it() -> None:
    async with stand() as at:
        for number in range(2):
            await anyio.wait_all_tasks_blocked()
            news = at.feed.news
            at.put(f"op-{number}", running(op=f"op-{number}"))
            await news.wait()
        assert at.board.looks == 0
        stream = at.feed.events("0")
        assert [event.id for event in await read(stream, 2)] == [1, 2]
        at.put("op-2", running(op="op-2"))
        assert [event.id for event in await read(stream, 1)] == [3]
        assert at.board.looks > 0


async def test_readers_are_let_go_when_the_feed_closes() -> None:
    async with stand() as at:
        stream = at.feed.events("0")
        async with anyio.create_task_group() as readers:

            async def follow() -> None:
                assert [told async for told in stream] == []

            readers.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            at.feed.close()


async def test_an_operation_that_is_over_is_waited_for_no_longer_than_it_takes() -> None:
    async with stand() as at:
        at.put("a", running(op="a"))
        assert await at.feed.finished(OpId("a"), timedelta(seconds=0.01)) is None
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                view = await at.feed.finished(OpId("a"), timedelta(seconds=PATIENCE_S))
                assert view is not None
                assert view.operation.finished_at is not None

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            at.put("a", a_step(op="a", state=State.SUCCEEDED), finished=True)
