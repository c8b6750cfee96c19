"""What people ask for: a new operation, another wish for one, a retry, an end to looking at it. How wishes
meet is decided in ops.intents."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, or_, select

from remuda.core.errors import Conflict
from remuda.core.ids import NodeId
from remuda.ops.intents import replaced, retried, same_as
from remuda.ops.model import Operation, OpId, RollOut, Source, Step, Wish
from remuda.ops.ports import Submitted
from remuda.store.ops_changes import number_changes, take_turn
from remuda.store.ops_rows import (
    LIVE,
    batches,
    find_operation,
    finish_operations,
    get_operation,
    insert_operation,
    insert_steps,
    read_steps,
    to_operation,
    update_operation,
    update_steps,
)
from remuda.store.schema import operations, steps

_A_MOMENT = timedelta(microseconds=1)


def submit(connection: Connection, now: datetime, operation: Operation, new: Sequence[Step]) -> Submitted:
    latest = take_turn(connection)
    there = _asked_before(connection, operation) or _same_under_way(connection, operation, new)
    if there is not None:
        return Submitted(there, joined=True)
    operation = replace(operation, asked_at=_after_all_live(connection, now))
    insert_operation(connection, operation, latest + 1)
    insert_steps(connection, now, operation, new)
    gone = _replace_opposites(connection, now, operation.id, new)
    finish_operations(connection, now, [operation.id])
    number_changes(connection, latest, [operation.id, *gone])
    return Submitted(get_operation(connection, operation.id), joined=False)


def _asked_before(connection: Connection, operation: Operation) -> Operation | None:
    """The very same, sent again because its answer was lost, or another under the same key."""
    key = operation.idempotency_key
    same_key = [operations.c.idempotency_key == key] if key else []
    there = find_operation(connection, or_(operations.c.id == operation.id, *same_key))
    if there is not None and there.id != operation.id and _content(there) != _content(operation):
        raise Conflict(
            f"the idempotency key {key!r} was used for another operation, {there.id}",
            hint="send another key with each new wish, and the same one only to repeat a wish",
        )
    return there


def _content(operation: Operation) -> tuple[str, Source, RollOut, str]:
    """What was asked for. Galleries, and which nodes a selection means, may have changed by themselves."""
    source = replace(operation.source, galleries="")
    return operation.kind, source, operation.roll_out, operation.selection


def _same_under_way(connection: Connection, operation: Operation, new: Sequence[Step]) -> Operation | None:
    if not new:
        return None
    on_a_node_of_it = select(steps.c.op_id).where(steps.c.node == new[0].node)
    alike = select(operations).where(
        LIVE,
        operations.c.kind == operation.kind,
        operations.c.source == operation.source,
        operations.c.id.in_(on_a_node_of_it),
    )
    live = {
        OpId(row.id): to_operation(row) for row in connection.execute(alike.order_by(operations.c.number))
    }
    with_nodes = [(other, _nodes(connection, other.id)) for other in live.values()]
    same = same_as(operation, [step.node for step in new], with_nodes)
    return None if same is None else live[same]


def _nodes(connection: Connection, op: OpId) -> list[NodeId]:
    return [NodeId(node) for node in connection.scalars(select(steps.c.node).where(steps.c.op_id == op))]


def _after_all_live(connection: Connection, now: datetime) -> datetime:
    """Now, and later than whatever is under way: who goes first goes by it, and clocks may be set back."""
    newest = select(operations.c.asked_at).where(LIVE).order_by(operations.c.asked_at.desc()).limit(1)
    last: datetime | None = connection.scalar(newest)
    return now if last is None else max(now, last + _A_MOMENT)


def _replace_opposites(
    connection: Connection, now: datetime, op: OpId, wanted: Sequence[Step]
) -> Sequence[OpId]:
    """Mark the steps of others whose opposite is wanted now; the operations that they belong to."""
    mine = steps.alias()
    on_the_same_nodes = steps.c.node.in_(select(mine.c.node).where(mine.c.op_id == op))
    unended = (steps.c.ended_at.is_(None)) & (steps.c.op_id != op) & on_the_same_nodes
    theirs = select(operations).where(operations.c.id.in_(select(steps.c.op_id).where(unended)))
    others = [to_operation(row) for row in connection.execute(theirs)]
    gone = replaced(wanted, read_steps(connection, unended, others)) if others else []
    update_steps(connection, now, map(_next_version, gone))
    return sorted({step.op for step in gone})


def set_wish(connection: Connection, op: OpId, wish: Wish) -> Operation:
    latest = take_turn(connection)
    operation = get_operation(connection, op)
    if operation.finished_at is not None:
        raise Conflict(f"operation {op} is over", hint="retry it, or ask for a new one")
    if operation.wish is wish:
        return operation
    operation = replace(operation, wish=wish, version=operation.version + 1)
    update_operation(connection, operation)
    number_changes(connection, latest, [op])
    return operation


def retry(
    connection: Connection, now: datetime, op: OpId, nodes: Collection[NodeId] | None, by: str
) -> Operation:
    latest = take_turn(connection)
    operation = get_operation(connection, op)
    ended = read_steps(connection, (steps.c.op_id == op) & steps.c.ended_at.is_not(None), [operation])
    again = [
        replace(afresh, reason=f"asked for again by {by}")
        for step in ended
        if (nodes is None or step.node in nodes) and (afresh := retried(step)) != step
    ]
    if not again:
        raise Conflict(
            f"operation {op} has nothing to retry there",
            hint="only steps that failed or were cancelled can be retried",
        )
    update_steps(connection, now, map(_next_version, again))
    gone = _replace_opposites(connection, now, op, again)
    operation = replace(
        operation,
        wish=Wish.RUN if operation.wish is Wish.CANCEL else operation.wish,
        finished_at=None,
        dismissed=False,
        version=operation.version + 1,
    )
    update_operation(connection, operation)
    number_changes(connection, latest, [op, *gone])
    return operation


def dismiss(connection: Connection, ops: Collection[OpId] | None) -> int:
    latest = take_turn(connection)
    over = select(operations).where(operations.c.finished_at.is_not(None), operations.c.dismissed.is_(False))
    wanted = [over] if ops is None else [over.where(operations.c.id.in_(batch)) for batch in batches(ops)]
    shown = [to_operation(row) for query in wanted for row in connection.execute(query)]
    for operation in shown:
        update_operation(connection, replace(operation, dismissed=True, version=operation.version + 1))
    number_changes(connection, latest, [operation.id for operation in shown])
    return len(shown)


def _next_version(step: Step) -> Step:
    return replace(step, version=step.version + 1)
