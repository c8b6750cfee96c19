"""Loads and unloads as operations: one step on one node, for one replica. Pure."""

from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Goal, Kind, Operation, OpId, ReplicaTarget, RollOut, Source, Step

_BEGIN_WITHIN: Final = timedelta(minutes=1)  # Whoever waits for it does not wait for ever.


def load(
    op: OpId, target: ReplicaTarget, source: Source, node: NodeId, node_name: str, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    """`source` says which backend, and where the node gets it from."""
    return _operation(Kind.LOAD, op, target, source, node, node_name, by, now, now + _BEGIN_WITHIN)


def unload(
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
