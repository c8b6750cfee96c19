"""Loads and unloads, as operations ask for them; and what operations on backends mean for replicas."""

from collections.abc import Callable, Collection

import structlog

from remuda.core.ids import NodeId
from remuda.ops.model import Ending, Kind, Step
from remuda.scheduler.loader import Loader
from remuda.scheduler.model import ReplicaState
from remuda.scheduler.ports import ReplicaStore
from remuda.scheduler.unloader import Unloader

log = structlog.get_logger(__name__)
_ON_ITS_WAY = (ReplicaState.STAGING, ReplicaState.LOADING)  # Whoever loads these finds out by itself.


class ReplicaWork:
    """Implements ops.ports.ModelWork. `changed` tells everybody that a row is gone."""

    def __init__(
        self, loader: Loader, unloader: Unloader, store: ReplicaStore, changed: Callable[[], None]
    ) -> None:
        self._loader = loader
        self._unloader = unloader
        self._store = store
        self._changed = changed

    async def carry_out(self, step: Step) -> Ending:
        return await (self._loader.load(step) if step.kind is Kind.LOAD else self._unloader.unload(step))

    async def latest_change(self) -> int:
        return (await self._store.replicas()).change

    async def forget_stopped(self, node: NodeId, keys: Collection[str], known: int) -> None:
        for row in (await self._store.replicas()).rows:
            meant = row.node == node and str(row.key) in keys and row.change <= known
            if meant and row.state not in _ON_ITS_WAY and await self._store.remove(row):
                log.info("replica_forgotten", replica=str(row.key), reason="its backend was changed")
                self._changed()
