"""Progress as this frontend hears it, laid over what is stored. Written down now and then, not per event."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.ops.live_progress import LiveProgress, end, fold, worth_keeping
from remuda.ops.model import OpId
from remuda.ops.ports import OpStore
from remuda.wire.backends import InstallProgress

log = structlog.get_logger(__name__)

Key = tuple[OpId, NodeId]
AttemptKey = tuple[OpId, NodeId, int]
WRITE_EVERY: Final = timedelta(seconds=2)


class ProgressBoard:
    def __init__(self, store: OpStore, clock: Clock, write_every: timedelta = WRITE_EVERY) -> None:
        self._store = store
        self._clock = clock
        self._write_every = write_every
        self._live: dict[Key, LiveProgress] = {}
        self._kept: dict[Key, LiveProgress] = {}
        self._changed = anyio.Event()

    @property
    def changed(self) -> anyio.Event:
        """Set at the next event. Take it before looking, and none is missed."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        return self._changed

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return self._live.get((op, node))

    def hear(self, key: AttemptKey, event: InstallProgress) -> None:
        op, node, attempt = key
        known = self._live.get((op, node))
        if known is None or known.attempt < attempt:
            known = LiveProgress(attempt)
        if known.attempt == attempt:
            self._set((op, node), fold(known, event, self._clock.monotonic()))

    def ended(self, key: AttemptKey) -> None:
        """The attempt is over: what still comes of it is late."""
        op, node, attempt = key
        known = self._live.get((op, node), LiveProgress(attempt))
        if known.attempt == attempt:
            self._set((op, node), end(known))

    def keep(self, at_work: Collection[AttemptKey]) -> None:
        """Forget all others."""
        kept = {(op, node): attempt for op, node, attempt in at_work}
        self._live = {key: live for key, live in self._live.items() if kept.get(key) == live.attempt}
        self._kept = {key: live for key, live in self._kept.items() if key in self._live}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await anyio.sleep(self._write_every.total_seconds())
            await self.write()

    async def write(self) -> None:
        """Store what a reader would see as news. What cannot be stored now is tried next time."""
        news = {
            key: live
            for key, live in self._live.items()
            if not live.ended and worth_keeping(self._kept.get(key), live)
        }
        if not news:
            return
        now = self._clock.now()
        try:
            await self._store.note_progress({key: live.stored(now) for key, live in news.items()})
        except RemudaError as error:
            log.warning("progress_not_written", reason=error.message)
            return
        self._kept |= news

    def _set(self, key: Key, live: LiveProgress) -> None:
        self._live[key] = live
        self._changed.set()
