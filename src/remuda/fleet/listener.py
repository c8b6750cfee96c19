"""Proves at intervals that this frontend can hear the fleet, and records it: only such time counts as a
node's silence. Logs each change of a node's status once."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.fleet import Standing
from remuda.fleet.health import NodeStatus, Thresholds
from remuda.fleet.ports import FleetStore

log = structlog.get_logger()


class Listener:
    """`bus_round_trip` raises a RemudaError while the bus does not answer."""

    def __init__(
        self,
        frontend: FrontendId,
        store: FleetStore,
        bus_round_trip: Callable[[], Awaitable[None]],
        thresholds: Thresholds,
        observe: Callable[[Sequence[Standing]], None],
    ) -> None:
        self._frontend = frontend
        self._store = store
        self._bus_round_trip = bus_round_trip
        self._thresholds = thresholds
        self._observe = observe
        self.store_trouble: RemudaError | None = None  # Why it could not be written when last tried.
        self._deaf = True  # A new frontend heard nothing before it was there.
        self._statuses: dict[NodeId, NodeStatus] = {}

    @property
    def every(self) -> timedelta:
        """Often enough for the shortest silence that counts."""
        return min(timedelta(seconds=limits.HEARING_EVERY_S), self._thresholds.unhealthy_after / 4)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self.listen_once()
        task_status.started()
        while True:
            await anyio.sleep(self.every.total_seconds())
            await self.listen_once()

    async def listen_once(self) -> None:
        try:
            await self._bus_round_trip()
            await self._write()
            fleet = await self._store.fleet()
        except RemudaError as error:
            if not self._deaf:
                log.warning("hearing_lost", reason=error.message)
            self._deaf = True
            return
        if self._deaf:
            log.info("hearing_began")
        self._deaf = False
        standings = fleet.standings(self._thresholds)
        self._say_changes(standings)
        self._observe(standings)

    async def _write(self) -> None:
        """A database may answer questions and refuse every change: its disk is full, or it is read-only."""
        try:
            await self._store.listen(self._frontend, resumed=self._deaf)
        except RemudaError as error:
            self.store_trouble = error
            raise
        self.store_trouble = None

    def _say_changes(self, standings: Sequence[Standing]) -> None:
        for standing in standings:
            node, status = standing.node, standing.status
            before = self._statuses.get(node.id)
            if before is not None and before is not status:
                log.info("node_status_changed", node=node.name, was=before, now=status, why=standing.reasons)
        self._statuses = {standing.node.id: standing.status for standing in standings}
