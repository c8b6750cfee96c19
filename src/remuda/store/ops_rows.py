"""Operations and steps as rows: reading and writing them, with the numbers of their changes. A reader
that has seen all operations up to one number misses nothing by asking for what comes after it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from remuda.core import limits
from remuda.core.errors import NotFound
from remuda.core.ids import BootId, NodeId
from remuda.ops.model import Kind, Operation, OpId, Stage, State, Step, Wish
from remuda.ops.ports import View
from remuda.store.ops_codec import (
    StoredSource,
    source_of,
    step_reason_of,
    stored_source,
    stored_step_reason,
    target_of,
)
from remuda.store.schema import ColumnValues, change_count, nodes, operations, steps

T = TypeVar("T")

LIVE: Final = operations.c.finished_at.is_(None)
OF_LIVE: Final = steps.c.op_id.in_(select(operations.c.id).where(LIVE))
_OF_REPLICA: Final = operations.c.kind.in_([kind for kind in Kind if kind.of_replica])

# Built once: with this many columns, building a statement costs more than running it.
_OPERATION = select(operations).where(operations.c.id == bindparam("op"))
_UPDATE_OPERATION = update(operations).where(operations.c.id == bindparam("row_id"))
_UPDATE_STEP = update(steps).where(
    steps.c.op_id == bindparam("row_op"),
    steps.c.node == bindparam("row_node"),
    steps.c.version == bindparam("row_version"),
)
_UNENDED = select(steps.c.node).where(steps.c.op_id == operations.c.id, steps.c.ended_at.is_(None))
_FINISH = (
    update(operations)
    .where(operations.c.id.in_(bindparam("ids", expanding=True)), LIVE, ~_UNENDED.exists())
    .values(finished_at=bindparam("now"), version=operations.c.version + 1)
)
_INSERT_OPERATION = insert(operations)
_INSERT_STEP = insert(steps).values(  # Without a reference where the node has been removed meanwhile.
    node_id=select(nodes.c.id).where(nodes.c.id == bindparam("row_node")).scalar_subquery()
)


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """As many at a time as one statement may carry."""
    rest = iter(items)
    while batch := list(islice(rest, limits.ROWS_PER_STATEMENT_MAX)):
        yield batch


# Operations.


def get_operation(connection: Connection, op: OpId) -> Operation:
    row = connection.execute(_OPERATION, {"op": op}).one_or_none()
    if row is None:
        raise unknown_operation(op)
    return to_operation(row)


def unknown_operation(op: OpId) -> NotFound:
    return NotFound(
        f"there is no operation with the id {op}",
        hint="list the operations to see their ids; the oldest finished ones are forgotten",
    )


def insert_operations(connection: Connection, numbered: Iterable[tuple[Operation, int]]) -> None:
    for batch in batches(numbered):
        connection.execute(
            _INSERT_OPERATION,
            [
                {"id": operation.id, "number": number, "change": number, **_operation_columns(operation)}
                for operation, number in batch
            ],
        )


def update_operation(connection: Connection, operation: Operation) -> None:
    connection.execute(_UPDATE_OPERATION, {"row_id": operation.id, **_operation_columns(operation)})


def finish_operations(connection: Connection, now: datetime, ops: Iterable[OpId]) -> None:
    """Those of these whose steps are all final."""
    if sum(connection.execute(_FINISH, {"ids": batch, "now": now}).rowcount for batch in batches(ops)):
        forget_oldest(connection)


def forget_oldest(connection: Connection) -> None:
    """A few at a time, so that no writer waits for long; the next time takes more. Requests bring about loads
    and unloads by the thousand: they do not push out what people asked for."""
    for same_kind, kept_max in (
        (~_OF_REPLICA, limits.OPERATIONS_KEPT_MAX),
        (_OF_REPLICA, limits.MODEL_OPERATIONS_KEPT_MAX),
    ):
        oldest = (
            select(operations.c.id)
            .where(operations.c.finished_at.is_not(None), same_kind)
            .order_by(operations.c.finished_at.desc(), operations.c.number.desc())
            .offset(kept_max)
            .limit(limits.OPERATIONS_FORGOTTEN_AT_ONCE_MAX)
        )
        forgotten = list(connection.scalars(oldest))
        if forgotten:
            connection.execute(delete(operations).where(operations.c.id.in_(forgotten)))


def to_operation(row: Row[tuple[object]]) -> Operation:
    return Operation(
        id=OpId(row.id),
        kind=Kind(row.kind),
        source=source_of(row.source),
        target=target_of(row.source),
        roll_out=row.roll_out,
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        wish=Wish(row.wish),
        expires=row.expires,
        idempotency_key=row.idempotency_key or "",
        selection=row.selection,
        finished_at=row.finished_at,
        dismissed=row.dismissed,
        cleared=row.cleared,
        version=row.version,
    )


def _operation_columns(operation: Operation) -> ColumnValues:
    return {
        "kind": operation.kind,
        "backend": operation.source.backend,
        "model": operation.model,
        "source": stored_source(operation.source, operation.target),
        "roll_out": operation.roll_out,
        "asked_by": operation.asked_by,
        "asked_at": operation.asked_at,
        "wish": operation.wish,
        "expires": operation.expires,
        "idempotency_key": operation.idempotency_key or None,
        "selection": operation.selection,
        "finished_at": operation.finished_at,
        "dismissed": operation.dismissed,
        "cleared": operation.cleared,
        "version": operation.version,
    }


# Steps.


def insert_steps(connection: Connection, now: datetime, of: Iterable[View]) -> None:
    for batch in batches((view.operation, step) for view in of for step in view.steps):
        connection.execute(_INSERT_STEP, [_step_columns(operation, step, now) for operation, step in batch])


def _step_columns(operation: Operation, step: Step, now: datetime) -> ColumnValues:
    assert (step.op, step.kind) == (operation.id, operation.kind), "a step serves its operation"
    return {
        "op_id": step.op,
        "node": step.node,
        "row_node": step.node,
        "node_name": step.node_name,
        "source": _own_source(step, operation),
        "goal": step.goal,
        "version": step.version,
        **_changing_columns(step, now),
    }


def _own_source(step: Step, operation: Operation) -> StoredSource | None:
    same = (step.source, step.target) == (operation.source, operation.target)
    return None if same else stored_source(step.source, step.target)


def next_version(step: Step) -> Step:
    return replace(step, version=step.version + 1)


def update_steps(connection: Connection, now: datetime, changed: Iterable[Step]) -> None:
    """Write what can change about a step, over the row whose version is one less."""
    for batch in batches(changed):
        connection.execute(
            _UPDATE_STEP,
            [
                {
                    "row_op": step.op,
                    "row_node": step.node,
                    "row_version": step.version - 1,
                    "version": step.version,
                    **_changing_columns(step, now),
                }
                for step in batch
            ],
        )


def to_steps(rows: Iterable[Row[tuple[object]]], of: Iterable[Operation]) -> list[Step]:
    """`of` are the operations that they belong to."""
    known = {operation.id: operation for operation in of}
    return [to_step(row, known[OpId(row.op_id)]) for row in rows]


def to_step(row: Row[tuple[object]], operation: Operation) -> Step:
    return Step(
        op=operation.id,
        node=NodeId(row.node),
        node_name=row.node_name,
        kind=operation.kind,
        source=operation.source if row.source is None else source_of(row.source),
        target=operation.target if row.source is None else target_of(row.source),
        goal=row.goal,
        state=State(row.state),
        stage=Stage(row.stage),
        proves=row.proves,
        rolls_back=row.rolls_back,
        expires=row.expires,
        attempt=row.attempt,
        failures=row.failures,
        boot=None if row.boot is None else BootId(row.boot),
        answer_by=row.answer_by,
        wait_until=row.wait_until,
        problem=row.problem,
        why=step_reason_of(row.reason, row.cause),
        replaced_by=None if row.replaced_by is None else OpId(row.replaced_by),
        version=row.version,
        listed_before=row.listed_before,
    )


def _changing_columns(step: Step, now: datetime) -> ColumnValues:
    return {
        "state": step.state,
        "stage": step.stage,
        "proves": step.proves,
        "rolls_back": step.rolls_back,
        "expires": step.expires,
        "attempt": step.attempt,
        "failures": step.failures,
        "boot": step.boot,
        "answer_by": step.answer_by,
        "wait_until": step.wait_until,
        "problem": step.problem,
        "reason": step.reason,
        "cause": stored_step_reason(step.why),
        "replaced_by": step.replaced_by,
        "listed_before": step.listed_before,
        "ended_at": now if step.state.final else None,
    }


_LATEST = select(change_count.c.latest)
_LATEST_LOCKED = _LATEST.with_for_update()
_COUNT = update(change_count)
_NUMBER = update(operations).where(operations.c.id == bindparam("row_id"))


def take_turn(connection: Connection) -> int:
    """Wait until no other transaction changes operations; the newest number. Comes first in a transaction.

    The next number is given by the next commit, so numbers follow the order of commits. That also makes
    what is read from here on stay as it is until this transaction ends.
    """
    latest: int = connection.scalars(_LATEST_LOCKED).one()
    return latest


def number_changes(connection: Connection, latest: int, changed: Iterable[OpId]) -> None:
    """Give each of these operations a number of its own, after `latest`, which is taken."""
    numbered = [{"row_id": op, "change": number} for number, op in enumerate(changed, latest + 1)]
    if numbered:
        connection.execute(_NUMBER, numbered)
    connection.execute(_COUNT, {"latest": latest + len(numbered)})


def latest_change(connection: Connection) -> int:
    latest: int = connection.scalars(_LATEST).one()
    return latest
