"""Records when this frontend used which replicas, so that every frontend can tell which are idle: soon after
a pause, and now and then while the use lasts, but not with each request."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import ReplicaKey
from remuda.router.in_flight import RequestLedger
from remuda.router.live_table import Tables
from remuda.scheduler.upkeep_rules import noted_every

log = structlog.get_logger(__name__)

_LOOK_S: Final = 1.0


class LastUsedWriter:
    """`touch` is told how long ago each was used, by no clock but the store's; `usual` is the `keep_alive` of
    models that name none."""

    def __init__(
        self,
        tables: Tables,
        ledger: RequestLedger,
        clock: Clock,
        *,
        touch: Callable[[Mapping[ReplicaKey, timedelta]], Awaitable[None]],
        usual: timedelta,
    ) -> None:
        self._tables = tables
        self._ledger = ledger
        self._clock = clock
        self._touch = touch
        self._usual = usual
        self._turns: Mapping[ReplicaKey, int] = {}
        self._held: Mapping[ReplicaKey, int] = {}
        self._used_s: dict[ReplicaKey, float] = {}
        self._noted_s: dict[ReplicaKey, float] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await anyio.sleep(_LOOK_S)
            try:
                await self.note()
            except RemudaError as error:  # The next time tells it, too.
                log.debug("use_not_noted", reason=error.message)

    async def note(self) -> None:
        """Write what is due, and with it all that is not written yet."""
        now_s = self._clock.monotonic()
        self._look(now_s)
        unwritten = [
            key for key, used_s in self._used_s.items() if used_s > self._noted_s.get(key, float("-inf"))
        ]
        if not any(self._due(key, now_s) for key in unwritten):
            return
        await self._touch({key: timedelta(seconds=now_s - self._used_s[key]) for key in unwritten})
        self._noted_s |= dict.fromkeys(unwritten, now_s)

    def _look(self, now_s: float) -> None:
        """What was in flight at the last look has ended since, or has not: it was used until now."""
        turns, held = self._ledger.turns(), self._ledger.own()
        begun = {key for key, turn in turns.items() if turn != self._turns.get(key)}
        used = begun | held.keys() | self._held.keys()
        self._used_s = {key: now_s if key in used else self._used_s[key] for key in turns}
        self._noted_s = {key: noted_s for key, noted_s in self._noted_s.items() if key in turns}
        self._turns, self._held = turns, held

    def _due(self, key: ReplicaKey, now_s: float) -> bool:
        entry = self._tables.now.models.get(key.model)
        keep = None if entry is None else entry.config.keep_alive
        every = noted_every(self._usual if keep is None else keep)
        return key not in self._noted_s or now_s - self._noted_s[key] >= every.total_seconds()
