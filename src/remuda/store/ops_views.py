"""Queries of operations: what is under way, what there is, and what changed."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, or_, select, tuple_

from remuda.core.ids import BootId, NodeId
from remuda.fleet.verdicts import BackendInventory
from remuda.ops.model import Attempt, Kind, Operation, OpId, Stage, State, Step, StepKey
from remuda.ops.ports import Filter, Live, OpenRequest, Progress, View
from remuda.store.ops_attempts import AT_WORK, ending_of
from remuda.store.ops_rows import (
    LIVE,
    OF_LIVE,
    batches,
    latest_change,
    to_operation,
    to_step,
    unknown_operation,
)
from remuda.store.schema import attempts, node_inventories, on_its_way, operations, replicas, steps

StepMark = Row[tuple[object]]
"""A row with the `op_id`, `node` and `version` of a step."""

_BY_KEY: Final = select(steps).where(
    steps.c.op_id.in_(bindparam("ops", expanding=True)),  # By itself, SQLite finds no index for the pairs.
    tuple_(steps.c.op_id, steps.c.node).in_(bindparam("keys", expanding=True)),
)


class KnownSteps:
    """Whatever is written about a step gives it another version, so that the version says all."""

    def __init__(self) -> None:
        self._known: dict[StepKey, Step] = {}  # Replaced as a whole: several threads read at once.

    def read(
        self, connection: Connection, marks: Sequence[StepMark], of: Mapping[OpId, Operation]
    ) -> list[Step]:
        """The steps of these marks, in their order. `of` are the operations that they belong to."""
        known = self._known
        unknown = [
            (mark.op_id, mark.node)
            for mark in marks
            if (step := known.get((mark.op_id, mark.node))) is None or step.version != mark.version
        ]
        if unknown:
            known = known | {step.key: step for step in _read(connection, unknown, of)}
            self._known = known
        return [known[mark.op_id, mark.node] for mark in marks]

    def forget_others(self, of: Collection[OpId]) -> None:
        self._known = {key: step for key, step in self._known.items() if step.op in of}


def _read(connection: Connection, keys: Sequence[StepKey], of: Mapping[OpId, Operation]) -> list[Step]:
    return [
        to_step(row, of[OpId(row.op_id)])
        for batch in batches(keys)
        for row in connection.execute(_BY_KEY, {"ops": list({op for op, _ in batch}), "keys": batch}).all()
    ]


StepTableRow = Row[tuple[object]]

_OF_STEP: Final = and_(  # The attempt that a step is at, or ended with.
    attempts.c.op_id == steps.c.op_id,
    attempts.c.node == steps.c.node,
    attempts.c.number == steps.c.attempt,
)
_STEPS: Final = (
    select(steps, attempts.c.progress).outerjoin(attempts, _OF_STEP).order_by(steps.c.op_id, steps.c.node)
)
_MARKS: Final = _STEPS.with_only_columns(steps.c.op_id, steps.c.node, steps.c.version)
# Built once: they are run at every look of every frontend.
_LIVE_OPERATIONS: Final = select(operations).where(LIVE).order_by(operations.c.asked_at, operations.c.id)
_LIVE_MARKS: Final = _MARKS.add_columns(
    attempts.c.begun_at, attempts.c.open_until, attempts.c.ended_at, attempts.c.problem, attempts.c.note
).where(OF_LIVE)
_CHANGED_MARKS: Final = _MARKS.add_columns(attempts.c.progress).where(
    steps.c.op_id.in_(bindparam("ops", expanding=True))
)
_BUSY: Final = select(steps.c.node).where(OF_LIVE, steps.c.ended_at.is_(None))
_BUSY_INVENTORIES: Final = select(node_inventories).where(node_inventories.c.node_id.in_(_BUSY))
_LAST_ENDED: Final = (
    select(steps.c.node, func.max(steps.c.ended_at).label("at"))
    .where(steps.c.node.in_(_BUSY), steps.c.ended_at.is_not(None))
    .group_by(steps.c.node)
)
_LOADS: Final = select(replicas.c.op_id, replicas.c.node_id, replicas.c.boot).where(on_its_way)

_UPGRADES: Final = select(operations.c.id).where(operations.c.kind == Kind.UPGRADE)
_FAILED_PROOFS: Final = select(steps).where(
    or_(steps.c.stage == Stage.ROLL_BACK, and_(steps.c.stage == Stage.PROVE, steps.c.state == State.FAILED)),
    steps.c.op_id.in_(_UPGRADES),
)
_PROOFS: Final = select(steps).where(
    steps.c.stage == Stage.PROVE,
    steps.c.state == State.SUCCEEDED,
    steps.c.ended_at >= bindparam("since"),
    steps.c.op_id.in_(_UPGRADES),
)


def live(connection: Connection, now: datetime, known: KnownSteps) -> Live:
    found = {OpId(row.id): to_operation(row) for row in connection.execute(_LIVE_OPERATIONS)}
    if not found:  # Nearly always, in most fleets.
        known.forget_others(())
        return Live(now, (), (), (), ())
    marks = connection.execute(_LIVE_MARKS).all()
    own = known.read(connection, marks, found)
    known.forget_others(found)
    requests = tuple(
        _request(step, mark)
        for step, mark in zip(own, marks, strict=True)
        if step.state in AT_WORK and mark.begun_at is not None
    )
    ended_at = {NodeId(row.node): row.at for row in connection.execute(_LAST_ENDED)}
    listed = tuple(map(_inventory, connection.execute(_BUSY_INVENTORIES)))
    loads = _loads(connection) if any(one.kind is Kind.LOAD for one in found.values()) else {}
    return Live(now, tuple(found.values()), tuple(own), requests, listed, ended_at, loads)


def _loads(connection: Connection) -> dict[StepKey, BootId | None]:
    return {
        (OpId(row.op_id), NodeId(row.node_id)): None if row.boot is None else BootId(row.boot)
        for row in connection.execute(_LOADS)
    }


def _request(step: Step, row: StepTableRow) -> OpenRequest:
    return OpenRequest(
        op=step.op,
        node=step.node,
        attempt=step.attempt,
        begun_at=row.begun_at,
        open_until=row.open_until,
        ended=row.ended_at is not None,
        ending=ending_of(step.kind, row.problem, row.note),
    )


def inventories(connection: Connection) -> tuple[BackendInventory, ...]:
    return tuple(map(_inventory, connection.execute(select(node_inventories))))


def _inventory(row: StepTableRow) -> BackendInventory:
    return BackendInventory(NodeId(row.node_id), BootId(row.boot), row.listed_at, row.backends)


def tried(connection: Connection, now: datetime) -> list[tuple[Step, datetime]]:
    """The steps of upgrades that could not start a new version, and those that could since; with when."""
    rows = connection.execute(_FAILED_PROOFS).all()
    if not rows:  # Nearly always.
        return []
    since = min((row.ended_at for row in rows if row.ended_at is not None), default=now)
    rows = [*rows, *connection.execute(_PROOFS, {"since": since}).all()]
    query = select(operations).where(operations.c.id.in_(bindparam("ids", expanding=True)))
    of = {
        one.id: one
        for batch in batches({row.op_id for row in rows})
        for one in map(to_operation, connection.execute(query, {"ids": batch}))
    }
    return [(to_step(row, of[OpId(row.op_id)]), row.ended_at or now) for row in rows]


def view(connection: Connection, op: OpId) -> View:
    found = connection.execute(select(operations).where(operations.c.id == op)).all()
    if not found:
        raise unknown_operation(op)
    of_op = select(attempts).where(attempts.c.op_id == op).order_by(attempts.c.node, attempts.c.number)
    lines = [_attempt(row) for row in connection.execute(of_op)]
    [seen] = _views(connection, found, lines)
    return seen


def views(connection: Connection, which: Filter) -> list[View]:
    query = select(operations).where(*_conditions(which)).order_by(operations.c.number.desc())
    return _views(connection, connection.execute(query.limit(which.limit)).all())


def _conditions(which: Filter) -> Iterable[ColumnElement[bool]]:
    yield from _about(which)
    if which.finished is not None:
        yield operations.c.finished_at.is_not(None) if which.finished else LIVE
    if which.node is not None:
        yield operations.c.id.in_(select(steps.c.op_id).where(steps.c.node == which.node))
    if not which.dismissed:
        put_away = operations.c.cleared if which.history else operations.c.dismissed
        yield put_away.is_(False)
    if which.failed:
        failed = select(steps.c.node).where(steps.c.op_id == operations.c.id, steps.c.state == State.FAILED)
        yield failed.exists()
    if which.before is not None:
        yield operations.c.number < which.before


def _about(which: Filter) -> Iterable[ColumnElement[bool]]:
    if which.kinds:
        yield operations.c.kind.in_(which.kinds)
    if which.backend:
        yield operations.c.backend == which.backend
    if which.model:
        yield operations.c.model == which.model
    if which.ids:
        yield operations.c.id.in_(which.ids)
    if which.id_begins:
        yield operations.c.id.startswith(which.id_begins, autoescape=True)


def changed_since(
    connection: Connection, change: int, limit: int, known: KnownSteps
) -> tuple[list[View], int]:
    later = select(operations).where(operations.c.change > change).order_by(operations.c.change).limit(limit)
    found = connection.execute(later).all()
    of = {OpId(row.id): to_operation(row) for row in found}
    marks = [
        mark for batch in batches(of) for mark in connection.execute(_CHANGED_MARKS, {"ops": batch}).all()
    ]
    own = known.read(connection, marks, of)
    steps = ((step, mark.progress) for step, mark in zip(own, marks, strict=True))
    return _assembled(found, of, steps), latest_change(connection)


def _views(
    connection: Connection, found: Sequence[StepTableRow], lines: Sequence[Attempt] = ()
) -> list[View]:
    of = {OpId(row.id): to_operation(row) for row in found}
    rows = (
        (to_step(row, of[OpId(row.op_id)]), row.progress)
        for batch in batches(of)
        for row in connection.execute(_STEPS.where(steps.c.op_id.in_(batch))).all()
    )
    return _assembled(found, of, rows, lines)


def _assembled(
    found: Sequence[StepTableRow],
    of: Mapping[OpId, Operation],
    steps: Iterable[tuple[Step, Progress | None]],
    lines: Sequence[Attempt] = (),
) -> list[View]:
    own = defaultdict[OpId, list[Step]](list)
    progress = defaultdict[OpId, list[tuple[NodeId, Progress]]](list)
    for step, far in steps:
        own[step.op].append(step)
        if far is not None:
            progress[step.op].append((step.node, far))
    return [
        View(operation, tuple(own[op]), row.change, tuple(lines), tuple(progress[op]), row.number)
        for row, (op, operation) in zip(found, of.items(), strict=True)
    ]


def _attempt(row: StepTableRow) -> Attempt:
    return Attempt(
        op=OpId(row.op_id),
        node=NodeId(row.node),
        number=row.number,
        stage=Stage(row.stage),
        begun_at=row.begun_at,
        ended_at=row.ended_at,
        problem=row.problem,
    )
