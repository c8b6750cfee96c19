"""What people ask: new operations, as many as have come, in one transaction; and of those that are there
another intent, a retry, or their dismissal. How intents meet each other is decided in ops.concurrency."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, Select, and_, bindparam, delete, insert, select

from remuda.core import limits
from remuda.core.errors import Conflict
from remuda.core.hints import pasted
from remuda.core.ids import NodeId
from remuda.ops.concurrency import (
    RETRIED,
    asked_again,
    opposites,
    outdated,
    replaced,
    same_as,
    wished_again,
    woken,
)
from remuda.ops.external_sources import as_named_now
from remuda.ops.model import Kind, Operation, OpId, RollOut, Step, StepKey, Wish
from remuda.ops.ports import Submitted, View
from remuda.ops.reasons import StepCause, because
from remuda.store import ops_views
from remuda.store.ops_codec import StoredSource, stored_source
from remuda.store.ops_rows import (
    LIVE,
    batches,
    forget_oldest,
    get_operation,
    insert_operations,
    insert_steps,
    next_version,
    number_changes,
    take_turn,
    to_operation,
    to_steps,
    update_operation,
    update_steps,
)
from remuda.store.schema import joined_keys, operations, steps

# Idempotency keys of requests that joined an operation; that of the request which made it is in its own row.
_JOINED_BY_KEY = (
    select(operations, joined_keys.c.key, joined_keys.c.selection.label("asked_selection"))
    .join(operations, operations.c.id == joined_keys.c.op_id)
    .where(joined_keys.c.key.in_(bindparam("values", expanding=True)))
)
_NEWEST = (
    select(joined_keys.c.key)
    .where(joined_keys.c.op_id == bindparam("op"))
    .order_by(joined_keys.c.joined_at.desc(), joined_keys.c.key)
    .limit(bindparam("most"))
)
_FORGET = delete(joined_keys).where(
    joined_keys.c.op_id == bindparam("op"), joined_keys.c.key.not_in(_NEWEST.scalar_subquery())
)


def _find_joined(connection: Connection, keys: Iterable[str]) -> dict[str, Operation]:
    """The operations that these keys joined, each with the selection that was asked for under its key."""
    return {
        row.key: replace(to_operation(row), selection=row.asked_selection)
        for batch in batches(keys)
        for row in connection.execute(_JOINED_BY_KEY, {"values": batch}).all()
    }


def _insert_joined(connection: Connection, now: datetime, joined: Mapping[str, Operation]) -> None:
    """Of each operation the newest are kept."""
    for batch in batches(joined.items()):
        connection.execute(
            insert(joined_keys),
            [
                {"key": key, "op_id": operation.id, "selection": operation.selection, "joined_at": now}
                for key, operation in batch
            ],
        )
    for op in {operation.id for operation in joined.values()}:
        connection.execute(_FORGET, {"op": op, "most": limits.JOINED_KEYS_KEPT_MAX})


WithSteps = tuple[Operation, list[Step]]
Query = Select[tuple[object]]

_A_MOMENT = timedelta(microseconds=1)

# Built once: building a statement costs more than running it.
_BY_ID = select(operations).where(operations.c.id.in_(bindparam("values", expanding=True)))
_BY_KEY = select(operations).where(operations.c.idempotency_key.in_(bindparam("values", expanding=True)))
_ALIKE = (
    select(operations)
    .where(LIVE, operations.c.source.in_(bindparam("values", expanding=True)))
    .order_by(operations.c.number)
)
_STEPS = select(steps).where(steps.c.op_id.in_(bindparam("values", expanding=True)))
_LAST_ASKED = select(operations.c.asked_at).where(LIVE).order_by(operations.c.asked_at.desc()).limit(1)
_OPPOSED = select(operations).where(LIVE, operations.c.kind.in_(bindparam("values", expanding=True)))
_UNENDED = select(steps).where(
    steps.c.op_id.in_(bindparam("values", expanding=True)), steps.c.ended_at.is_(None)
)


@dataclass(frozen=True, slots=True)
class Wished:
    operation: Operation
    steps: tuple[Step, ...]


def submit(connection: Connection, now: datetime, wished: Sequence[Wished]) -> list[Submitted | Conflict]:
    """An answer for each. Of one that is refused nothing is written."""
    latest = take_turn(connection)
    meeting = _Meeting(connection, now, wished)
    found = [meeting.take(one) for one in wished]
    new = meeting.write(latest)
    joined = {op: ops_views.view(connection, op) for op in found if isinstance(op, str) and op not in new}
    return [
        op
        if isinstance(op, Conflict)
        else Submitted((new | joined)[op], joined=op in joined or op != one.operation.id)
        for one, op in zip(wished, found, strict=True)
    ]


class _Meeting:
    """What new wishes could meet, and what becomes of both."""

    def __init__(self, connection: Connection, now: datetime, wished: Sequence[Wished]) -> None:
        self._connection = connection
        self._now = now
        operations = [one.operation for one in wished]
        keys = {one.idempotency_key for one in operations if one.idempotency_key}
        known = [
            *_operations(connection, _BY_ID, {one.id for one in operations}),
            *_operations(connection, _BY_KEY, keys),
        ]
        self._by_id = {one.id: one for one in known}
        self._by_key = {one.idempotency_key: one for one in known if one.idempotency_key}
        self._by_key |= _find_joined(connection, keys)
        self._joined: dict[str, Operation] = {}  # New keys of wishes that joined another operation.
        self._alike = _alike(connection, {_about(one) for one in operations})
        self._unended = _opposed(connection, {one.kind for one in operations})
        self._last_asked: datetime | None = connection.scalar(_LAST_ASKED)
        self._new: dict[OpId, Operation] = {}
        self._steps: dict[StepKey, Step] = {}  # Of the new ones.
        self._marked: dict[StepKey, Step] = {}  # Of others.

    def take(self, one: Wished) -> OpId | Conflict:
        """The operation that stands for this wish: one that is there, or its own."""
        operation = one.operation
        there = self._by_id.get(operation.id) or self._by_key.get(operation.idempotency_key)
        if there is None:
            same = same_as(operation, one.steps, self._alike[_about(operation)])
            return self._add(one) if same is None else self._join(same, one)
        if there.id == operation.id or _content(there) == _content(operation):
            return there.id
        return Conflict(
            f"the idempotency key {operation.idempotency_key!r} was used for another operation, {there.id}",
            hint="send another key with each new wish, and the same one only to repeat a wish",
        )

    def _join(self, op: OpId, one: Wished) -> OpId:
        """The same was asked for again: what failed, or waits for its next attempt, is tried now, and nodes
        that are done are looked at again."""
        wished, steps = one.operation, {step.node: step for step in one.steps}
        joined, its_steps = next(met for met in self._alike[_about(wished)] if met[0].id == op)
        if wished.idempotency_key:
            key, known_as = wished.idempotency_key, replace(joined, selection=wished.selection)
            self._joined[key] = self._by_key[key] = known_as
        current = (self._steps.get(step.key) or self._marked.get(step.key) or step for step in its_steps)
        again = [
            replace(afresh, why=because(StepCause.ASKED_AGAIN, wished.asked_by))
            for step in current
            if not step.kind.of_replica and (afresh := wished_again(step, steps[step.node])) != step
        ]
        self._mark(again)
        self._mark(replaced(again, self._met_by(again)))
        return op

    def _add(self, one: Wished) -> OpId:
        asked_at = self._next_asked_at()
        later = asked_at - one.operation.asked_at  # The frontend's clock is not trusted, only its spans.
        expires = None if one.operation.expires is None else one.operation.expires + later
        over = all(step.state.final for step in one.steps)
        operation = replace(
            one.operation, asked_at=asked_at, expires=expires, finished_at=self._now if over else None
        )
        new = [replace(step, expires=expires) for step in one.steps]
        self._mark(replaced(new, self._met_by(new)))
        if not operation.kind.of_replica:
            self._mark(outdated(new, self._from_same_source(operation)))
            self._wake(operation, new)
        self._new[operation.id] = self._by_id[operation.id] = operation
        if operation.idempotency_key:
            self._by_key[operation.idempotency_key] = operation
        if not over:
            self._alike[_about(operation)].append((operation, new))
        for step in new:
            self._steps[step.key] = self._unended[step.node][step.key] = step
        return operation.id

    def _met_by(self, steps: Sequence[Step]) -> list[Step]:
        """What is not over on the same nodes; for a model, on any."""
        nodes = self._unended if any(step.kind.of_model for step in steps) else {step.node for step in steps}
        return [met for node in tuple(nodes) for met in self._unended[node].values()]

    def _wake(self, wished: Operation, new: Sequence[Step]) -> None:
        why = because(StepCause.ASKED_AGAIN, wished.asked_by)
        others = self._from_same_source(wished, Wish.RUN)
        self._mark([replace(step, why=why) for step in woken(others, new)])

    def _from_same_source(self, wished: Operation, *wishes: Wish) -> list[Step]:
        """The steps of operations from its source as they are now: of all, or only of those so wished."""
        others = [
            step
            for other, its in self._alike[_about(wished)]
            if not wishes or other.wish in wishes
            for step in its
        ]
        return [self._steps.get(step.key) or self._marked.get(step.key) or step for step in others]

    def _next_asked_at(self) -> datetime:
        """Now, and later than all that is under way: who goes first goes by it, and clocks jump back."""
        last = self._last_asked
        self._last_asked = self._now if last is None else max(self._now, last + _A_MOMENT)
        return self._last_asked

    def _mark(self, changed: Iterable[Step]) -> None:
        for step in changed:
            self._unended[step.node][step.key] = step
            (self._steps if step.op in self._new else self._marked)[step.key] = step

    def write(self, latest: int) -> dict[OpId, View]:
        """The new ones as they are now."""
        numbered = {op: number for number, op in enumerate(self._new, latest + 1)}
        by_op = defaultdict[OpId, list[Step]](list)
        for _, step in sorted(self._steps.items()):
            by_op[step.op].append(step)
        views = {
            op: View(self._new[op], tuple(by_op[op]), number, number=number)
            for op, number in numbered.items()
        }
        if views:
            insert_operations(self._connection, [(view.operation, view.change) for view in views.values()])
            insert_steps(self._connection, self._now, views.values())
        _insert_joined(self._connection, self._now, self._joined)
        if not views and not self._marked:
            return views
        update_steps(self._connection, self._now, map(next_version, self._marked.values()))
        changed = sorted({step.op for step in self._marked.values()})
        number_changes(self._connection, latest + len(views), changed)
        if any(operation.finished_at is not None for operation in self._new.values()):
            forget_oldest(self._connection)
        return views


def _content(operation: Operation) -> tuple[str, StoredSource, RollOut, str]:
    """What was asked for. Galleries, and which nodes a selection means, may have changed by themselves."""
    source = as_named_now(operation.source) if operation.kind is Kind.INSTALL else operation.source
    about = replace(stored_source(source, operation.target), galleries="")
    return operation.kind, about, operation.roll_out, operation.selection


def _about(operation: Operation) -> StoredSource:
    return stored_source(operation.source, operation.target)


def _operations(connection: Connection, query: Query, values: Iterable[object]) -> list[Operation]:
    return [
        to_operation(row)
        for batch in batches(values)
        for row in connection.execute(query, {"values": batch}).all()
    ]


def _alike(
    connection: Connection, sources: Iterable[StoredSource]
) -> defaultdict[StoredSource, list[WithSteps]]:
    """What is under way from these sources, the oldest first."""
    found = {one.id: one for one in _operations(connection, _ALIKE, sources)}
    by_op = defaultdict[OpId, list[Step]](list)
    for batch in batches(found):
        for step in to_steps(connection.execute(_STEPS, {"values": batch}).all(), found.values()):
            by_op[step.op].append(step)
    alike = defaultdict[StoredSource, list[WithSteps]](list)
    for op, operation in found.items():
        alike[_about(operation)].append((operation, by_op[op]))
    return alike


def _opposed(connection: Connection, kinds: Iterable[Kind]) -> defaultdict[NodeId, dict[StepKey, Step]]:
    """What is not over of the operations that want the opposite of these kinds, by node."""
    found = _operations(connection, _OPPOSED, opposites(kinds))
    unended = defaultdict[NodeId, dict[StepKey, Step]](dict)
    for batch in batches(one.id for one in found):
        for step in to_steps(connection.execute(_UNENDED, {"values": batch}).all(), found):
            unended[step.node][step.key] = step
    return unended


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
_STEPS_OF_OP = select(steps).where(steps.c.op_id == bindparam("op"))


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
            hint=f"ask for a new one: remuda models load {pasted(operation.model)}",
        )
    known = to_steps(connection.execute(_STEPS_OF_OP, {"op": op}).all(), [operation])
    again = [
        replace(afresh, why=because(StepCause.ASKED_AGAIN, by))
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
