"""What people ask of operations that are there: another wish, a retry, an end to looking at it. How wishes
meet is decided in ops.intents."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, select

from remuda.core.errors import Conflict
from remuda.core.ids import NodeId
from remuda.core.pasting import pasted
from remuda.ops.intents import RETRIED, asked_again, replaced
from remuda.ops.model import Kind, Operation, OpId, Step, Wish
from remuda.store.ops_changes import number_changes, take_turn
from remuda.store.ops_rows import (
    batches,
    get_operation,
    model_of,
    next_version,
    to_operation,
    to_steps,
    update_operation,
    update_steps,
)
from remuda.store.schema import operations, steps

_mine = steps.alias()
_MEETS = and_(  # What others have not ended on nodes of this operation.
    steps.c.node.in_(select(_mine.c.node).where(_mine.c.op_id == bindparam("op"))),
    steps.c.op_id != bindparam("op"),
    steps.c.ended_at.is_(None),
)
_MET_STEPS = select(steps).where(_MEETS).order_by(steps.c.op_id, steps.c.node)
_MET_OPERATIONS = select(operations).where(operations.c.id.in_(select(steps.c.op_id).where(_MEETS)))
_OVER = select(operations).where(operations.c.finished_at.is_not(None))
_STATES = select(steps.c.state).where(steps.c.op_id == bindparam("op"))
_STEPS = select(steps).where(steps.c.op_id == bindparam("op"))


def _replace_opposites(
    connection: Connection, now: datetime, op: OpId, wanted: Sequence[Step]
) -> Sequence[OpId]:
    """Mark the steps of others whose opposite is wanted now; the operations that they belong to."""
    others = [to_operation(row) for row in connection.execute(_MET_OPERATIONS, {"op": op}).all()]
    if not others:
        return ()
    theirs = to_steps(connection.execute(_MET_STEPS, {"op": op}).all(), others)
    gone = replaced(wanted, theirs)
    update_steps(connection, now, map(next_version, gone))
    return sorted({step.op for step in gone})


def set_wish(connection: Connection, op: OpId, wish: Wish) -> Operation:
    latest = take_turn(connection)
    operation = get_operation(connection, op)
    if operation.finished_at is not None:
        raise Conflict(f"operation {op} is over", hint=_what_else(connection, operation))
    if operation.kind is Kind.LOAD and wish is Wish.PAUSE:  # To stop it lets go of its replica.
        raise Conflict(f"operation {op} is a load, which cannot be paused", hint="cancel it")
    if operation.wish is wish:
        return operation
    operation = replace(operation, wish=wish, version=operation.version + 1)
    update_operation(connection, operation)
    number_changes(connection, latest, [op])
    return operation


def _what_else(connection: Connection, operation: Operation) -> str:
    """What to do instead of steering an operation that is over."""
    ended = connection.scalars(_STATES, {"op": operation.id})
    retries = operation.kind is not Kind.LOAD and any(state in RETRIED for state in ended)
    return "retry it, or ask for a new one" if retries else "ask for a new one"


def retry(
    connection: Connection, now: datetime, op: OpId, nodes: Collection[NodeId] | None, by: str
) -> Operation:
    latest = take_turn(connection)
    operation = get_operation(connection, op)
    if operation.kind is Kind.LOAD:  # What was set aside for its replica is so no longer.
        raise Conflict(
            f"operation {op} is a load, and its node was chosen by what was true then",
            hint=f"ask for a new one: remuda models load {pasted(model_of(operation))}",
        )
    known = to_steps(connection.execute(_STEPS, {"op": op}).all(), [operation])
    again = [
        replace(afresh, reason=f"asked for again by {by}")
        for step in known
        if (nodes is None or step.node in nodes) and (afresh := asked_again(step)) != step
    ]
    if not again:
        raise Conflict(
            f"operation {op} has nothing to retry there",
            hint="only steps that failed, were cancelled or wait for another attempt can be retried",
        )
    update_steps(connection, now, map(next_version, again))
    gone = _replace_opposites(connection, now, op, again)
    operation = replace(
        operation,
        wish=Wish.RUN if operation.wish is Wish.CANCEL else operation.wish,
        finished_at=None,
        dismissed=False,
        cleared=False,
        version=operation.version + 1,
    )
    update_operation(connection, operation)
    number_changes(connection, latest, [op, *gone])
    return operation


def dismiss(connection: Connection, ops: Collection[OpId]) -> int:
    latest = take_turn(connection)
    listed = _OVER.where(operations.c.dismissed.is_(False))
    found = [
        row for batch in batches(ops) for row in connection.execute(listed.where(operations.c.id.in_(batch)))
    ]
    return _rewrite(connection, latest, [replace(to_operation(row), dismissed=True) for row in found])


def clear_history(connection: Connection) -> int:
    latest = take_turn(connection)
    found = connection.execute(_OVER.where(operations.c.cleared.is_(False))).all()
    cleared = [replace(to_operation(row), dismissed=True, cleared=True) for row in found]
    return _rewrite(connection, latest, cleared)


def _rewrite(connection: Connection, latest: int, changed: Sequence[Operation]) -> int:
    for operation in changed:
        update_operation(connection, replace(operation, version=operation.version + 1))
    number_changes(connection, latest, [operation.id for operation in changed])
    return len(changed)
