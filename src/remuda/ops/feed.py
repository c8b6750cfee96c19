"""Changes of operations for any number of readers: read from the store once, sent to all.

A reader has a place, the number of the last change it was sent, and can continue from there on any
frontend. There are no queues: a slow reader gets the latest state only, or all states anew.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable
from remuda.core.events import Notifier
from remuda.core.ids import NodeId
from remuda.ops.model import OpId, State
from remuda.ops.op_views import live_view, with_steps
from remuda.ops.ports import Filter, OpStore, Progress, View
from remuda.ops.progress import LiveProgress, Overlay
from remuda.ops.progress_board import SHARE
from remuda.wire.codec import encode
from remuda.wire.operations import Tick

log = structlog.get_logger(__name__)

LOOK_EVERY: Final = timedelta(seconds=1)  # Even without a signal that something has changed.
REST: Final = timedelta(milliseconds=100)  # What changes meanwhile is sent together.
QUIET: Final = timedelta(seconds=2)  # Then a reader hears that the line still stands.
READERS_MAX: Final = 1000
_PAGE: Final = 200
_KEPT_MAX: Final = 2000  # Changes; readers further behind are served from the store.
_KEPT_BYTES_MAX: Final = 32 << 20
_BEHIND_MAX: Final = 100_000  # Readers still further behind are sent everything anew.
_SHOWN_MAX: Final = 10_000
_FINISHED_SHOWN_MAX: Final = 50
_END: Final = 2**62  # No change has such a number.


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: bytes
    op: OpId | None = None
    id: int | None = None  # Only where a reader can continue.


class Board(Overlay, Protocol):
    @property
    def changed(self) -> anyio.Event: ...


class ChangeSource(Protocol):
    @property
    def changed(self) -> anyio.Event: ...


class ProgressSource(Protocol):
    def listening(self) -> AbstractAsyncContextManager[None]:
        """Progress of workers is received while the block lasts."""
        ...


_Seen = dict[NodeId, tuple[int, Progress | None]]


class Feed:
    """`run` must be running while there are readers."""

    def __init__(
        self, store: OpStore, signal: ChangeSource, board: Board, progress: ProgressSource, clock: Clock
    ) -> None:
        self._store = store
        self._signal = signal
        self._board = board
        self._progress = progress
        self._clock = clock
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._floor = _END  # A reader who knows this change misses nothing of what is kept.
        self._newest = 0
        self._seen: dict[OpId, _Seen] = {}
        self._ticks: OrderedDict[tuple[OpId, NodeId], tuple[int, LiveProgress, Event]] = OrderedDict()
        self._tick_count = 0
        self._news = Notifier()
        self._readers = 0
        self._came_or_went = Notifier()
        self.closed = False

    def require_room(self) -> None:
        """Unavailable when there are as many readers as there may be."""
        if self._readers >= READERS_MAX:
            raise Unavailable(f"{READERS_MAX} readers already follow operations")

    def close(self) -> None:
        """Every reader is let go."""
        self.closed = True
        self._tell()

    @property
    def news(self) -> anyio.Event:
        """Set when something has changed. Take it before looking, and nothing is missed."""
        return self._news.changed

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen_for_readers)
            tasks.start_soon(self._follow_ticks)
            await self._follow_changes()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block lasts, `news` is also of progress, as if someone read."""
        self._count_readers(1)
        try:
            yield
        finally:
            self._count_readers(-1)

    # One for all: what has changed.

    async def _follow_changes(self) -> None:
        while True:
            changed = self._signal.changed
            try:
                await self._look()
            except RemudaError as error:
                log.warning("changes_not_read", reason=error.message)
            await anyio.sleep(REST.total_seconds())
            with anyio.move_on_after(LOOK_EVERY.total_seconds()):
                await changed.wait()

    async def _look(self) -> None:
        if self._floor == _END:
            _, self._newest = await self._store.changed_since(_END, 1)
            self._floor = self._newest
        more = True
        while more:
            views, _ = await self._store.changed_since(self._newest, _PAGE)
            for view in views:
                self._take(view)
            more = len(views) == _PAGE

    def _take(self, view: View) -> None:
        before = self._seen.get(view.operation.id)
        progress = dict(view.progress)
        now = {step.node: (step.version, progress.get(step.node)) for step in view.steps}
        changed = None if before is None else {node for node in now if now[node] != before.get(node)}
        if view.operation.finished_at is None:
            self._seen[view.operation.id] = now
        else:
            self._seen.pop(view.operation.id, None)
        if self._readers:
            operation = with_steps(view, self._clock.now(), self._board, only=changed)
            self._keep(Event("op", encode(operation), view.operation.id, view.change))
        else:  # A reader that comes back later is served from the store.
            self._keep_nothing(view.change)
        self._newest = view.change
        self._forget_ticks(view)
        self._tell()

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._kept_bytes += len(event.data)
        while len(self._kept) > _KEPT_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            oldest = self._kept.popleft()
            self._kept_bytes -= len(oldest.data)
            self._floor = oldest.id or self._floor

    def _keep_nothing(self, until: int) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._floor = until

    # One for all: how far nodes are at this moment.

    async def _listen_for_readers(self) -> None:
        """Whichever frontend has sent the work: each of them shows the same."""
        while True:
            while not self._readers:
                await self._came_or_went.changed.wait()
            async with self._progress.listening():
                while self._readers:
                    await self._came_or_went.changed.wait()

    async def _follow_ticks(self) -> None:
        while True:
            changed, began_s = self._board.changed, self._clock.monotonic()
            if self._readers:
                self._take_ticks()
            spent_s = self._clock.monotonic() - began_s
            await anyio.sleep(max(spent_s / SHARE, REST.total_seconds()))
            await changed.wait()

    def _take_ticks(self) -> None:
        published = False
        for op, nodes in self._seen.items():
            for node in nodes:
                live = self._board.of(op, node)
                if live is None or live.ended or self._is_told(op, node, live):
                    continue
                self._tick_count += 1
                tick = Tick(op=op, node_id=node, attempt=live.attempt, progress=live_view(live))
                self._ticks[op, node] = self._tick_count, live, Event("progress", encode(tick), op)
                self._ticks.move_to_end((op, node))
                published = True
        if published:
            self._tell()

    def _is_told(self, op: OpId, node: NodeId, live: LiveProgress) -> bool:
        known = self._ticks.get((op, node))
        return known is not None and known[1] is live

    def _forget_ticks(self, view: View) -> None:
        for step in view.steps:
            if step.state is not State.RUNNING:
                self._ticks.pop((step.op, step.node), None)

    def _tell(self) -> None:
        self._news.notify()

    # Each for itself: reading.

    async def events(
        self, place: str, op: OpId | None = None, stay: timedelta | None = None
    ) -> AsyncIterator[Sequence[Event]]:
        """What has changed since `place`, and what changes from then on, as much at a time as there is;
        nothing now and then when nothing does.

        Without a place that is understood it begins with all there is. NotFound for an unknown operation.
        """
        self._count_readers(1)
        try:
            async for events in self._told(place, op, stay):
                yield events
        finally:
            self._count_readers(-1)

    def _count_readers(self, more: int) -> None:
        self._readers += more
        self._came_or_went.notify()

    async def _told(
        self, place: str, op: OpId | None, stay: timedelta | None
    ) -> AsyncIterator[Sequence[Event]]:
        until_s = None if stay is None else self._clock.monotonic() + stay.total_seconds()
        at, ticks = await self._begin(place), self._tick_count
        if at is None:
            async for event in self._snapshot(op):
                at = event.id
                yield (event,)
        assert at is not None, "a snapshot ends with a place"
        behind = True
        while not self.closed:
            news = self._news.changed
            if behind or at < self._floor:
                at, events, behind = await self._from_store(at, op)
            else:
                at, events = self._from_kept(at, op)
            ticks, told_lately = self._ticks_since(ticks, op)
            if events or told_lately:
                yield (*events, *told_lately)
            if behind:
                continue
            left_s = QUIET.total_seconds()
            if until_s is not None:
                left_s = min(left_s, until_s - self._clock.monotonic())
            if left_s <= 0:
                return
            with anyio.move_on_after(left_s) as waiting:
                await news.wait()
            if waiting.cancelled_caught:
                yield ()

    async def _begin(self, place: str) -> int | None:
        if not (place.isascii() and place.isdigit() and len(place) < 19):
            return None
        _, newest = await self._store.changed_since(_END, 1)
        return int(place) if 0 <= newest - int(place) <= _BEHIND_MAX else None

    async def _snapshot(self, op: OpId | None) -> AsyncIterator[Event]:
        """Forget what you know; these are the operations; continue from here."""
        _, newest = await self._store.changed_since(_END, 1)
        views = [await self._store.view(op)] if op is not None else await self._shown()
        yield Event("snapshot", b"{}", op)
        for view in views:
            yield self._whole(view)
        yield Event("ready", b"{}", op, newest)

    async def _shown(self) -> list[View]:
        live = await self._store.views(Filter(finished=False, limit=_SHOWN_MAX))
        finished = await self._store.views(Filter(finished=True, limit=_FINISHED_SHOWN_MAX))
        return [*live, *finished]

    def _whole(self, view: View, id: int | None = None) -> Event:
        operation = with_steps(view, self._clock.now(), self._board)
        return Event("op", encode(operation), view.operation.id, id)

    async def _from_store(self, at: int, op: OpId | None) -> tuple[int, list[Event], bool]:
        """What comes after `at`, the place behind it, and whether there is more."""
        views, _ = await self._store.changed_since(at, _PAGE)
        events = [self._whole(view, view.change) for view in views if op in (None, view.operation.id)]
        return views[-1].change if views else at, events, len(views) == _PAGE

    def _from_kept(self, at: int, op: OpId | None) -> tuple[int, list[Event]]:
        later = [event for event in self._kept if event.id is not None and event.id > at]
        place = max((event.id or at for event in later), default=at)
        return place, [event for event in later if op in (None, event.op)]

    def _ticks_since(self, count: int, op: OpId | None) -> tuple[int, list[Event]]:
        events: list[Event] = []
        for number, _, event in reversed(self._ticks.values()):
            if number <= count:
                break
            if op in (None, event.op):
                events.append(event)
        return self._tick_count, events[::-1]

    # Waiting for an end.

    async def finished(self, op: OpId, within: timedelta) -> View | None:
        """The operation once it is over; None when it is not in time. NotFound for an unknown one."""
        with anyio.move_on_after(within.total_seconds()):
            while True:
                news = self._news.changed
                view = await self._store.view(op)
                if view.operation.finished_at is not None:
                    return view
                with anyio.move_on_after(LOOK_EVERY.total_seconds()):
                    await news.wait()
        return None
