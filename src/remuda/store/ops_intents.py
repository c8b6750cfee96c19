"""What people ask for: a new operation, another wish for one, a retry, an end to looking at it. How wishes
meet is decided in ops.intents."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, or_, select

from remuda.core.errors import Conflict
from remuda.core.ids import NodeId
from remuda.ops.intents import replaced, retried, same_as
from remuda.ops.model import Operation, OpId, RollOut, Source, Step, Wish
from remuda.ops.ports import Submitted
from remuda.store.ops_changes import number_changes, take_turn
from remuda.store.ops_rows import (
    LIVE,
    batches,
    forget_oldest,
    get_operation,
    insert_operation,
    insert_steps,
    to_operation,
    to_steps,
    update_operation,
    update_steps,
)
from remuda.store.schema import operations, steps

_A_MOMENT = timedelta(microseconds=1)

# Built once: building a statement costs more than running it, and thousands may come at once.
_BY_ID_OR_KEY = select(operations).where(
    or_(operations.c.id == bindparam("op"), operations.c.idempotency_key == bindparam("key"))
)
_ALIKE = (
    select(operations)
    .where(
        LIVE,
        operations.c.kind == bindparam("kind"),
        operations.c.source == bindparam("source"),
        operations.c.id.in_(select(steps.c.op_id).where(steps.c.node == bindparam("node"))),
    )
    .order_by(operations.c.number)
)
_NODES = select(steps.c.node).where(steps.c.op_id == bindparam("op"))
_LAST_ASKED = select(operations.c.asked_at).where(LIVE).order_by(operations.c.asked_at.desc()).limit(1)
_mine = steps.alias()
_MEETS = and_(  # What others have not ended on nodes of this operation.
    steps.c.node.in_(select(_mine.c.node).where(_mine.c.op_id == bindparam("op"))),
    steps.c.op_id != bindparam("op"),
    steps.c.ended_at.is_(None),
)
_MET_STEPS = select(steps).where(_MEETS).order_by(steps.c.op_id, steps.c.node)
_MET_OPERATIONS = select(operations).where(operations.c.id.in_(select(steps.c.op_id).where(_MEETS)))
_ENDED = select(steps).where(steps.c.op_id == bindparam("op"), steps.c.ended_at.is_not(None))


def submit(connection: Connection, now: datetime, operation: Operation, new: Sequence[Step]) -> Submitted:
    latest = take_turn(connection)
    there = _asked_before(connection, operation) or _same_under_way(connection, operation, new)
    if there is not None:
        return Submitted(there, joined=True)
    over = all(step.state.final for step in new)
    asked_at = _after_all_live(connection, now)
    later = asked_at - operation.asked_at  # The frontend's clock is not trusted, only its spans.
    expires = None if operation.expires is None else operation.expires + later
    new = [replace(step, expires=expires) for step in new]
    operation = replace(operation, asked_at=asked_at, expires=expires, finished_at=now if over else None)
    insert_operation(connection, operation, latest + 1)
    insert_steps(connection, now, operation, new)
    number_changes(connection, latest + 1, _replace_opposites(connection, now, operation.id, new))
    if over:
        forget_oldest(connection)
    return Submitted(operation, joined=False)


def _asked_before(connection: Connection, operation: Operation) -> Operation | None:
    """The very same, sent again because its answer was lost, or another under the same key."""
    key = operation.idempotency_key
    row = connection.execute(_BY_ID_OR_KEY, {"op": operation.id, "key": key or None}).first()
    there = None if row is None else to_operation(row)
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
    alike = {"kind": operation.kind, "source": operation.source, "node": new[0].node}
    live = {OpId(row.id): to_operation(row) for row in connection.execute(_ALIKE, alike).all()}
    with_nodes = [(other, list(connection.scalars(_NODES, {"op": op}))) for op, other in live.items()]
    same = same_as(operation, [step.node for step in new], with_nodes)
    return None if same is None else live[same]


def _after_all_live(connection: Connection, now: datetime) -> datetime:
    """Now, and later than whatever is under way: who goes first goes by it, and clocks may be set back."""
    last: datetime | None = connection.scalar(_LAST_ASKED)
    return now if last is None else max(now, last + _A_MOMENT)


def _replace_opposites(
    connection: Connection, now: datetime, op: OpId, wanted: Sequence[Step]
) -> Sequence[OpId]:
    """Mark the steps of others whose opposite is wanted now; the operations that they belong to."""
    others = [to_operation(row) for row in connection.execute(_MET_OPERATIONS, {"op": op}).all()]
    if not others:
        return ()
    theirs = to_steps(connection.execute(_MET_STEPS, {"op": op}).all(), others)
    gone = replaced(wanted, theirs)
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
    ended = to_steps(connection.execute(_ENDED, {"op": op}).all(), [operation])
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
    if not shown:
        return 0
    for operation in shown:
        update_operation(connection, replace(operation, dismissed=True, version=operation.version + 1))
    number_changes(connection, latest, [operation.id for operation in shown])
    return len(shown)


def _next_version(step: Step) -> Step:
    return replace(step, version=step.version + 1)
