"""Keeps what replicas were measured to take, so that the next one is placed by it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError
from remuda.fleet.verdicts import ObservedNode
from remuda.models.memory import MemoryUse
from remuda.scheduler.measured_memory import MemoryBook, MemoryStore, has_settled, of_kinds, reported_use
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import ReplicaRows

log = structlog.get_logger(__name__)

_EVERY_S: Final = 10.0


class MemoryKeeper:
    """Every frontend may run it: what it writes only grows."""

    def __init__(
        self,
        store: MemoryStore,
        replicas: ReplicaRows,
        nodes: Callable[[], Awaitable[Sequence[ObservedNode]]],
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._nodes = nodes
        self._known = MemoryBook()
        self._now: Mapping[str, MemoryUse] = {}

    def known(self) -> MemoryBook:
        return self._known

    def of(self, replica: Replica) -> MemoryUse | None:
        """What its process takes, as of the last pass. None: its worker does not tell, or it was just
        loaded."""
        return self._now.get(replica.instance)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.pass_once()
            except RemudaError as error:  # The store is away; what is known stays.
                log.warning("measured_memory_not_kept", reason=error.message)
            await anyio.sleep(_EVERY_S)

    async def pass_once(self) -> None:
        self._known = MemoryBook({one.key: one.use for one in await self._store.measured()})
        told = await self._replicas.replicas()
        rows = told.rows
        views = {view.standing.node.id: view for view in await self._nodes()} if rows else {}
        seen = {
            row: use
            for row in rows
            if (view := views.get(row.node)) is not None
            and (use := reported_use(row, view.report)) is not None
        }
        self._now = {row.instance: use for row, use in seen.items() if has_settled(row, told.now)}
        news = self._known.news(of_kinds(seen, views))
        if news:
            await self._store.keep(news)
            self._known = MemoryBook({one.key: one.use for one in await self._store.measured()})
