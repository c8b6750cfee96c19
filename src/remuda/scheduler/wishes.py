"""Loads and unloads as operations: one step on one node, for one replica. Pure."""

from datetime import datetime, timedelta
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Goal, Kind, Operation, OpId, RollOut, Source, Step
from remuda.scheduler.model import ReplicaKey

_BEGIN_WITHIN: Final = timedelta(minutes=1)  # Whoever waits for it does not wait for ever.


def load(
    op: OpId, key: ReplicaKey, node: NodeId, node_name: str, source: Source, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    """`source` says which backend, and where the node gets it from."""
    return _operation(Kind.LOAD, op, key, node, node_name, source, by, now, now + _BEGIN_WITHIN)


def unload(
    op: OpId, key: ReplicaKey, node: NodeId, node_name: str, source: Source, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    return _operation(Kind.UNLOAD, op, key, node, node_name, source, by, now, None)


def source_of(key: ReplicaKey, backend: str, revision: str, *, galleries: str = "", why: str = "") -> Source:
    """`why`: of an unload, shown while it lasts."""
    return Source(backend, galleries, name=why, model=key.model, replica=key.index, revision=revision)


def _operation(
    kind: Kind,
    op: OpId,
    key: ReplicaKey,
    node: NodeId,
    node_name: str,
    source: Source,
    by: str,
    now: datetime,
    expires: datetime | None,
) -> tuple[Operation, Step]:
    # Not a backend's name: what is done to backends goes its own way.
    goal = Goal((f"replica {key}",))
    operation = Operation(op, kind, source, RollOut(1), by, now, expires=expires, selection=node_name)
    return operation, Step(op, node, node_name, kind, source, goal, expires=expires)
