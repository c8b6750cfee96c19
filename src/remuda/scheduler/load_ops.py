"""Loads and unloads as operations: one step on one node, for one replica."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.ops.model import Goal, Kind, Operation, OpId, ReplicaTarget, RollOut, Source, Step, UnloadReason
from remuda.ops.ports import OpSignal, OpStore
from remuda.scheduler.model import Replica

_BEGIN_WITHIN: Final = timedelta(minutes=1)  # Callers do not wait for it for ever.


def load_operation(
    op: OpId, target: ReplicaTarget, source: Source, node: NodeId, node_name: str, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    """`source` says which backend, and where the node gets it from."""
    return _operation(Kind.LOAD, op, target, source, node, node_name, by, now, now + _BEGIN_WITHIN)


def unload_operation(
    op: OpId, target: ReplicaTarget, source: Source, node: NodeId, node_name: str, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    return _operation(Kind.UNLOAD, op, target, source, node, node_name, by, now, None)


def target_of(step: Step) -> ReplicaTarget:
    assert step.target is not None, "every load and unload is about a replica"
    return step.target


def _operation(
    kind: Kind,
    op: OpId,
    target: ReplicaTarget,
    source: Source,
    node: NodeId,
    node_name: str,
    by: str,
    now: datetime,
    expires: datetime | None,
) -> tuple[Operation, Step]:
    # Not a backend's name: what is done to backends goes its own way.
    goal = Goal((f"replica {target.key}",))
    operation = Operation(
        op, kind, source, RollOut(1), by, now, expires=expires, selection=node_name, target=target
    )
    return operation, Step(op, node, node_name, kind, source, goal, expires=expires, target=target)


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
