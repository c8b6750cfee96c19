"""Asks for unloads, as operations, and carries them out, in two phases: a replica leaves the routing tables
and what is in flight ends; then its process is stopped, and only then it is forgotten. One that goes for
want of use stays if it is used after all, up to the last moment."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import anyio
import structlog

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Standing
from remuda.ops.model import (
    Ending,
    Kind,
    NotNeeded,
    Operation,
    OpId,
    ReplicaTarget,
    Source,
    Step,
    UnloadCause,
    UnloadReason,
)
from remuda.ops.ports import Live, OpSignal, OpStore
from remuda.scheduler.measured_speed import Rate, TimeTaken, not_timed
from remuda.scheduler.model import Replica, Replicas, ReplicaState, target_of, unload_operation
from remuda.scheduler.ports import Frontends, ReplicaStore, RoutingTable, WorkerCommands
from remuda.scheduler.upkeep_rules import used_since
from remuda.scheduler.worker_calls import stop_key
from remuda.wire.models import ModelStop

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.25
DRAIN: Final = timedelta(minutes=10)  # Then it is stopped, even if an answer is still being read.
_USED_AGAIN: Final = NotNeeded("not needed any more: it was used again")
_KEPT: Final = NotNeeded("not wanted any more: its model is to have as many replicas as it has")


def always(seen: Replicas, replica: Replica) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Going:
    """A replica that is marked. `idle_since`: it goes only if it was not used since then; None: by all
    means."""

    replica: Replica
    idle_since: datetime | None = None


class Unloader:
    """`may_go`: whether what is seen leaves its model enough without this replica. Asked for one that goes
    for want of use, for another frontend may be taking away another."""

    def __init__(
        self,
        store: ReplicaStore,
        worker: WorkerCommands,
        frontends: Frontends,
        live: Callable[[], Awaitable[Live]],
        table: RoutingTable,
        drain: timedelta = DRAIN,
        *,
        may_go: Callable[[Replicas, Replica], bool] = always,
        took: TimeTaken = not_timed,
    ) -> None:
        self._store = store
        self._worker = worker
        self._frontends = frontends
        self._live = live
        self._table = table
        self._drain = drain
        self._may_go = may_go
        self._took = took

    async def unload(self, step: Step) -> Ending:
        """None when it is gone, also when it was gone before."""
        try:
            return await self._unload(step)
        except RemudaError as error:
            return replace(error.problem(), retryable=True)
        finally:
            self._table.rows_changed()

    async def _unload(self, step: Step) -> Ending:
        going = await self._marked(step)
        if not isinstance(going, _Going):
            return going
        replica = going.replica
        if not await self._drained(going) and await self._kept(replica):
            return _USED_AGAIN
        began_s = anyio.current_time()
        await stop_key(self._worker, replica)
        if step.attempt <= 1:  # Else it may have been gone before.
            self._took(Rate.UNLOAD, replica.node, replica.key.model, anyio.current_time() - began_s)
        await self._store.remove(replica)
        return None

    async def _marked(self, step: Step) -> _Going | NotNeeded | None:
        """From here on no frontend that reads the store sends anything there."""
        while True:
            seen = await self._store.replicas()
            replica = _row_in(seen, target_of(step).key, step.node)
            if replica is None:
                await self._stop_unrecorded(step)
                return None
            if replica.state is ReplicaState.UNLOADING:  # Its process may have been asked to stop already.
                return _Going(replica)
            live = (await self._live()).operations
            if replica.state is not ReplicaState.LOADED and replica.op in _loads(live):
                return None  # It was asked for since: the load that this replaces was over before this began.
            idle_since = _idle_since(step, live)
            if idle_since is not None and await self._used(replica, idle_since):
                return _USED_AGAIN
            if idle_since is not None and not self._may_go(seen, replica):
                return _KEPT
            going = replace(replica, state=ReplicaState.UNLOADING, why=target_of(step).reason)
            unseen = None if idle_since is None else seen.change
            written = await self._store.move(replica, going, unseen)
            if written is not None:
                self._table.rows_changed()
                return _Going(written, idle_since)

    async def _stop_unrecorded(self, step: Step) -> None:
        """What its worker runs under this key, though there is no row of it. If that cannot be done now,
        upkeep does it later, by the worker's reports."""
        key, node = target_of(step).key, step.node
        try:
            for one in (await self._worker.running(node)).models:
                if key == (one.model_id, one.replica_index) and await self._row(key, node) is None:
                    order = ModelStop(
                        model_name=key.model,
                        process_key=str(key),
                        expected_address=one.address,
                        instance=one.instance,
                    )
                    await self._worker.stop(node, order)
        except RemudaError as error:
            log.info("unrecorded_process_not_stopped", replica=str(key), node=node, reason=error.message)

    async def _row(self, key: ReplicaKey, node: NodeId) -> Replica | None:
        return _row_in(await self._store.replicas(), key, node)

    async def _drained(self, going: _Going) -> bool:
        """Whether its process may be stopped; False: it was used again."""
        replica, idle_since = going.replica, going.idle_since
        with anyio.move_on_after(self._drain.total_seconds()):
            while True:
                idle = await self._idle_everywhere(replica)
                if idle_since is not None and await self._used(replica, idle_since):
                    return False
                if idle:
                    return True
                await anyio.sleep(_LOOK_S)
        log.warning("replica_stopped_while_in_use", replica=str(replica.key))
        return True

    async def _used(self, replica: Replica, since: datetime) -> bool:
        """There is a request on it, or there was one."""
        alive = await self._frontends.alive()
        if any(self._frontends.in_flight(frontend, replica.key) for frontend in alive):
            return True
        row = await self._row(replica.key, replica.node)
        return row is not None and used_since(row, since)

    async def _kept(self, replica: Replica) -> bool:
        """It serves again, unless others have decided otherwise meanwhile."""
        serving = replace(replica, state=ReplicaState.LOADED, why=None)
        return await self._store.move(replica, serving) is not None

    async def _idle_everywhere(self, replica: Replica) -> bool:
        """Every living frontend knows that it is unloading, and has nothing in flight there."""
        return all(
            self._frontends.has_seen(frontend, replica.change)
            and not self._frontends.in_flight(frontend, replica.key)
            for frontend in await self._frontends.alive()
        )


def _row_in(seen: Replicas, key: ReplicaKey, node: NodeId) -> Replica | None:
    return next((row for row in seen.rows if row.key == key and row.node == node), None)


def _loads(live: Iterable[Operation]) -> Collection[OpId]:
    return {operation.id for operation in live if operation.kind is Kind.LOAD}


def _idle_since(step: Step, live: Iterable[Operation]) -> datetime | None:
    """When it was asked for, of an unload for want of use or of one too many: neither goes while in use."""
    reason = target_of(step).reason
    if reason is None or reason.cause not in (UnloadCause.IDLE, UnloadCause.SURPLUS):
        return None
    return next((operation.asked_at for operation in live if operation.id == step.op), None)


class UnloadRequests:
    def __init__(
        self,
        operations: OpStore,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        clock: Clock,
        entropy: Entropy,
        signal: OpSignal,
    ) -> None:
        self._operations = operations
        self._standings = standings
        self._clock = clock
        self._entropy = entropy
        self._signal = signal

    async def ask(self, replica: Replica, by: str, why: UnloadReason) -> OpId:
        """The operation that unloads it. One that is being loaded is given up first, for its load is replaced
        by this; should it be loaded by then, it is unloaded all the same."""
        operation, step = unload_operation(
            OpId(self._entropy.uuid()),
            ReplicaTarget(replica.key, replica.revision, why),
            Source(replica.backend),
            replica.node,
            await self._name_of(replica.node),
            by=by,
            now=self._clock.now(),
        )
        submitted = await self._operations.submit(operation, [step])
        self._signal.notify()
        return submitted.operation.id

    async def _name_of(self, node: NodeId) -> str:
        names = (one.node.name for one in await self._standings() if one.node.id == node)
        return next(names, str(node))
