"""Unloads one replica in two phases: nobody routes to it any more and what is in flight ends; then its
process is stopped, and only then it is forgotten."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio
import structlog

from remuda.core.errors import Problem, RemudaError
from remuda.ops.model import Kind, OpId, Step
from remuda.ops.ports import Live
from remuda.scheduler.loader import stop_given_up
from remuda.scheduler.model import Replica, ReplicaKey, ReplicaState
from remuda.scheduler.ports import Frontends, ReplicaStore, Worker

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.25
DRAIN: Final = timedelta(minutes=10)  # Then it is stopped under whoever still reads.


class Unloader:
    def __init__(
        self,
        store: ReplicaStore,
        worker: Worker,
        frontends: Frontends,
        live: Callable[[], Awaitable[Live]],
        changed: Callable[[], None],
        drain: timedelta = DRAIN,
    ) -> None:
        self._store = store
        self._worker = worker
        self._frontends = frontends
        self._live = live
        self._changed = changed
        self._drain = drain

    async def unload(self, step: Step) -> Problem | None:
        """None when it is gone, also when it was gone before."""
        key = ReplicaKey(step.source.model, step.source.replica)
        try:
            replica = await self._marked(key, step)
            if replica is None:
                return None
            await self._drained(replica)
            await stop_given_up(self._worker, replica)
            await self._store.remove(replica)
        except RemudaError as error:
            return replace(error.problem(), retryable=True)
        finally:
            self._changed()
        return None

    async def _marked(self, key: ReplicaKey, step: Step) -> Replica | None:
        """From here on no frontend that reads the store sends anything there."""
        while True:
            rows = (await self._store.replicas()).rows
            replica = next((row for row in rows if row.key == key and row.node == step.node), None)
            if replica is None or replica.state is ReplicaState.UNLOADING:
                return replica
            if replica.state is not ReplicaState.LOADED and replica.op in await self._loads():
                return None  # It was asked for since: the load that this replaces was over before this began.
            going = replace(replica, state=ReplicaState.UNLOADING, why=step.source.name)
            written = await self._store.move(replica, going)
            if written is not None:
                self._changed()
                return written

    async def _loads(self) -> Collection[OpId]:
        return {operation.id for operation in (await self._live()).operations if operation.kind is Kind.LOAD}

    async def _drained(self, replica: Replica) -> None:
        with anyio.move_on_after(self._drain.total_seconds()):
            while True:
                if await self._idle_everywhere(replica):
                    return
                await anyio.sleep(_LOOK_S)
        log.warning("replica_stopped_while_in_use", replica=str(replica.key))

    async def _idle_everywhere(self, replica: Replica) -> bool:
        """Every living frontend knows that it is unloading, and has nothing in flight there."""
        return all(
            self._frontends.has_seen(frontend, replica.change)
            and not self._frontends.in_flight(frontend, replica.key)
            for frontend in await self._frontends.alive()
        )
