"""Progress as this frontend hears it, laid over what is stored. It is subscribed to while there are watchers
know, once for all nodes, and neither read nor written per event."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Rejected, RemudaError
from remuda.core.events import AutoResetEvent, Notifier
from remuda.core.ids import NodeId
from remuda.ops.model import AttemptKey, OpId, Step, StepKey
from remuda.ops.ports import BusMessage, OpStore, TapPort
from remuda.ops.progress import LiveProgress, aged, end, entered, fold, worth_keeping
from remuda.wire import subjects
from remuda.wire.backends import InstallPhase, InstallProgress
from remuda.wire.codec import decode

log = structlog.get_logger(__name__)

_WITHIN_S: Final = 5.0


class ProgressSubscription:
    def __init__(self, taps: TapPort, take: Callable[[BusMessage], None]) -> None:
        self._taps = taps
        self._take = take
        self._listeners = 0
        self._turn = anyio.Lock()
        self._end: Callable[[], Awaitable[None]] | None = None  # Of the subscription, while there is one.

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Subscribed before the block begins, and until the last of all such blocks has ended.

        Without a subscription the block runs all the same: progress is seen or not, replies decide.
        """
        self._listeners += 1
        try:
            await self.subscribe()
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                await self._unsubscribe()

    async def subscribe(self) -> None:
        """Where it did not succeed before. A subscription that stands outlives the bus' connections."""
        if self._end is not None or not self._listeners:
            return
        with anyio.move_on_after(_WITHIN_S):
            async with self._turn:
                if self._end is None:
                    try:
                        self._end = await self._taps.tap(subjects.ALL_INSTALL_PROGRESS, self._take)
                    except RemudaError as error:
                        log.warning("progress_not_subscribed", reason=error.message)
                return
        log.warning("progress_not_subscribed", reason="the bus did not confirm it in time")

    async def _unsubscribe(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_WITHIN_S):
            async with self._turn:
                if self._end is None or self._listeners:  # A listener has come meanwhile.
                    return
                end, self._end = self._end, None
                await end()


WRITE_EVERY: Final = timedelta(seconds=2)
REST_S: Final = 0.1
OWNER_SILENT: Final = timedelta(seconds=15)  # Then another frontend writes for the one that sent it.
SHARE: Final = 0.1  # Of this process' time at most, however many nodes tell how far they are.


class ProgressBoard:
    """Events of attempts at work are shown, whichever frontend has sent them. Each frontend writes down those
    of its own, and now and then what was heard of others whose frontend writes nothing any more."""

    def __init__(self, store: OpStore, clock: Clock, write_every: timedelta = WRITE_EVERY) -> None:
        self._store = store
        self._clock = clock
        self._write_every = write_every
        self._subjects: dict[str, AttemptKey] = {}  # On which an attempt at work may be heard.
        self._own: set[AttemptKey] = set()
        self._waiting: dict[AttemptKey, tuple[bytes, float]] = {}  # The newest of each, and when it came.
        self._heard_s: dict[AttemptKey, float] = {}  # When anything last came of each.
        self._arrived = AutoResetEvent()
        self._live: dict[StepKey, LiveProgress] = {}
        self._kept: dict[StepKey, LiveProgress] = {}
        self._others_due_s = 0.0
        self._changes = Notifier()

    @property
    def changed(self) -> anyio.Event:
        """Set at the next event. Take it before looking, and none is missed."""
        return self._changes.changed

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return self._live.get((op, node))

    def fetched_bytes(self, key: AttemptKey) -> int:
        """What has come for this attempt, of a worker that keeps it and tells it exactly; 0: not known, or it
        is past that."""
        self._read()
        op, node, attempt = key
        live = self._live.get((op, node))
        if live is None or live.attempt != attempt or not live.seq or live.phase != InstallPhase.DOWNLOADING:
            return 0
        return live.current_bytes

    # Which attempts there are.

    def begin(self, key: AttemptKey) -> None:
        """It is about to be sent from here."""
        self._own.add(key)
        self._expect(key)

    def ended(self, key: AttemptKey) -> None:
        """The attempt is over: what still comes of it is late."""
        op, node, attempt = key
        known = self._live.get((op, node), LiveProgress(attempt))
        if known.attempt == attempt:
            self._set((op, node), end(known))

    def keep(self, at_work: Collection[AttemptKey]) -> None:
        """Expect these, and forget all others."""
        expected = set(self._subjects.values())
        if expected == set(at_work):
            return
        self._subjects = {subject: key for subject, key in self._subjects.items() if key in at_work}
        for key in at_work:
            if key not in expected:
                self._expect(key)
        self._own.intersection_update(at_work)
        self._heard_s = {key: at_s for key, at_s in self._heard_s.items() if key in at_work}
        kept = {(op, node): attempt for op, node, attempt in at_work}
        self._live = {key: live for key, live in self._live.items() if kept.get(key) == live.attempt}
        self._kept = {key: live for key, live in self._kept.items() if key in self._live}

    def heard_of(self, within: timedelta) -> frozenset[AttemptKey]:
        """The attempts of which something was heard lately: their workers are at it."""
        since_s = self._clock.monotonic() - within.total_seconds()
        return frozenset(key for key, at_s in self._heard_s.items() if at_s >= since_s)

    def _expect(self, key: AttemptKey) -> None:
        op, node, _ = key
        self._subjects[subjects.install_progress(node, op)] = key

    # What is heard of them.

    def take(self, message: BusMessage) -> None:
        """Done in a moment: a thousand workers tell this a few thousand times a second."""
        key = self._subjects.get(message.subject)
        if key is not None:
            now_s = self._heard_s[key] = self._clock.monotonic()
            self._waiting[key] = (message.payload, now_s)
            self._arrived.set()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for key, (payload, at_s) in waiting.items():
            try:
                event = decode(InstallProgress, payload)
            except Rejected:
                continue
            if event.op_id == key[0]:
                self.hear(key, event, at_s)

    def hear(self, key: AttemptKey, event: InstallProgress, at_s: float) -> None:
        """An event of this attempt came at that instant of the monotonic clock."""
        op, node, attempt = key
        known = self._live.get((op, node))
        if known is None or known.attempt < attempt:
            known = LiveProgress(attempt)
        if known.attempt == attempt:
            self._set((op, node), fold(known, event, at_s))

    def tell(self, step: Step, event: InstallProgress) -> None:
        """Of an attempt that is carried out here."""
        self.hear((step.op, step.node, step.attempt), event, self._clock.monotonic())

    def moved(self, step: Step) -> float:
        """How far its bytes are: it only matters whether this changes."""
        live = self._live.get(step.key)
        return 0.0 if live is None else live.current_bytes + (live.fraction or 0.0)

    def enter(self, step: Step, phase: str) -> None:
        """An attempt that is carried out here has come to something that its worker does not tell of."""
        known = self._live.get(step.key, LiveProgress(step.attempt))
        if known.attempt == step.attempt and not known.ended:
            self._set(step.key, entered(known, phase))

    def _set(self, key: StepKey, live: LiveProgress) -> None:
        self._live[key] = live
        self._changes.notify()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_now_and_then)
            task_status.started()
            while True:
                await anyio.sleep(self._write_every.total_seconds())
                self.age()
                await self.write()

    def age(self) -> None:
        """Of attempts that nothing was heard of lately, no rate is shown any more, but since when."""
        now_s = self._clock.monotonic()
        for key, live in self._live.items():
            if (older := aged(live, now_s)) is not live:
                self._live[key] = older
                self._changes.notify()

    async def _read_now_and_then(self) -> None:
        """At once where it is quiet. Of what comes faster, only the newest of each node is looked at."""
        while True:
            await self._arrived.wait()
            began_s = self._clock.monotonic()
            self._read()
            spent_s = self._clock.monotonic() - began_s
            await anyio.sleep(max(spent_s / SHARE, REST_S))

    async def write(self) -> None:
        """Store what a reader would see as news. What cannot be stored now is tried next time."""
        news = {
            key: live
            for key, live in self._live.items()
            if not live.ended and worth_keeping(self._kept.get(key), live)
        }
        own = {key: live for key, live in news.items() if (*key, live.attempt) in self._own}
        await self._write(own)
        if self._clock.monotonic() >= self._others_due_s and len(own) < len(news):
            self._others_due_s = self._clock.monotonic() + OWNER_SILENT.total_seconds()
            others = {key: live for key, live in news.items() if key not in own}
            await self._write(others, silent_for=OWNER_SILENT)

    async def _write(self, news: Mapping[StepKey, LiveProgress], silent_for: timedelta = timedelta()) -> None:
        if not news:
            return
        now = self._clock.now()
        progress = {key: live.stored(now) for key, live in news.items()}
        try:
            await self._store.note_progress(progress, silent_for)
        except RemudaError as error:
            log.warning("progress_not_written", reason=error.message)
            return
        self._kept |= news
