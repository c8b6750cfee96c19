"""The progress of steps: their next states, their attempts, and the requests by which these were sent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, literal, select, tuple_, update

from remuda.core import limits
from remuda.core.errors import Problem
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.ops.model import (
    FRONTENDS,
    AttemptKey,
    DoneWithNote,
    Ending,
    Kind,
    NotNeeded,
    OpId,
    Outcome,
    Stage,
    State,
    Step,
)
from remuda.ops.ports import Progress
from remuda.store.ops_rows import batches, finish_operations, number_changes, take_turn, update_steps
from remuda.store.schema import attempts, node_inventories, nodes, steps
from remuda.wire.nodes import InstalledArtifact

AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING})

_HELD = select(
    *(
        steps.c[name]
        for name in ("op_id", "node", "version", "state", "stage", "attempt", "failures", "problem")
    )
).where(
    steps.c.op_id.in_(bindparam("ops", expanding=True)),  # By itself, SQLite finds no index for the pairs.
    tuple_(steps.c.op_id, steps.c.node).in_(bindparam("keys", expanding=True)),
)
_OF_STEP = (attempts.c.op_id == bindparam("row_op"), attempts.c.node == bindparam("row_node"))
_OPEN = (*_OF_STEP, attempts.c.number == bindparam("row_number"), attempts.c.ended_at.is_(None))
_UPDATE_OPEN = update(attempts).where(*_OPEN)
_PROGRESS = select(*(attempts.c[name] for name in ("op_id", "node", "number", "begun_at", "progress"))).where(
    attempts.c.op_id.in_(bindparam("ops", expanding=True)),
    tuple_(attempts.c.op_id, attempts.c.node, attempts.c.number).in_(bindparam("keys", expanding=True)),
    attempts.c.ended_at.is_(None),
)
_LET_GO = (
    update(attempts)
    .where(
        attempts.c.node == FRONTENDS,
        attempts.c.owner == bindparam("row_owner"),
        attempts.c.ended_at.is_(None),
    )
    .values(open_until=bindparam("until"))
)
_FORGET = delete(attempts).where(*_OF_STEP, attempts.c.number <= bindparam("row_number"))

Held = Row[tuple[object]]


@dataclass(frozen=True, slots=True)
class RequestHolder:
    """Whose the requests are that a commit makes, and for how long they are taken to be open."""

    owner: FrontendId
    open_for: timedelta


def commit(
    connection: Connection, now: datetime, changes: Sequence[Step], claim: RequestHolder
) -> list[Step]:
    latest = take_turn(connection)
    held = _held(connection, changes)
    won = [step for step in changes if step.key in held and held[step.key].version == step.version]
    if not won:
        return []
    written = [replace(step, version=step.version + 1) for step in won]
    update_steps(connection, now, written)
    _end_attempts(connection, now, [(held[step.key], step) for step in won])
    _begin_attempts(connection, now, [step for step in won if step.attempt > held[step.key].attempt], claim)
    changed = sorted({step.op for step in won})
    finish_operations(connection, now, changed)
    number_changes(connection, latest, changed)
    return written


def _held(connection: Connection, changes: Sequence[Step]) -> Mapping[tuple[OpId, NodeId], Held]:
    return {
        (OpId(row.op_id), NodeId(row.node)): row
        for batch in batches(changes)
        for row in connection.execute(
            _HELD, {"ops": list({step.op for step in batch}), "keys": [step.key for step in batch]}
        )
    }


def _end_attempts(connection: Connection, now: datetime, changes: Iterable[tuple[Held, Step]]) -> None:
    """Those whose reply has come are ended already, and keep what it said."""
    ended = [
        {
            "row_op": step.op,
            "row_node": step.node,
            "row_number": held.attempt,
            "ended_at": now,
            "problem": _what_failed(held, step),
        }
        for held, step in changes
        if held.state in AT_WORK and (step.state not in AT_WORK or step.attempt != held.attempt)
    ]
    for batch in batches(ended):
        connection.execute(_UPDATE_OPEN, batch)


def _what_failed(held: Held, step: Step) -> Problem | None:
    """A step keeps its last problem until it is done, so having one says nothing about this attempt."""
    gone_back = step.stage is Stage.ROLL_BACK and held.stage != step.stage
    failed = gone_back or step.failures > held.failures or step.problem != held.problem
    return step.problem if failed else None


def _begin_attempts(
    connection: Connection, now: datetime, begun: Sequence[Step], claim: RequestHolder
) -> None:
    for batch in batches(begun):
        connection.execute(
            insert(attempts),
            [
                {
                    "op_id": step.op,
                    "node": step.node,
                    "number": step.attempt,
                    "stage": step.stage,
                    "begun_at": now,
                    "owner": claim.owner,
                    "open_until": now + claim.open_for,
                }
                for step in batch
            ],
        )
    outdated = [
        {"row_op": step.op, "row_node": step.node, "row_number": step.attempt - limits.ATTEMPTS_KEPT_MAX}
        for step in begun
        if step.attempt > limits.ATTEMPTS_KEPT_MAX
    ]
    for rows in batches(outdated):
        connection.execute(_FORGET, rows)


# Requests. One is open from the beginning of its attempt until its reply, or until the step has moved on.


def hold(connection: Connection, op: OpId, node: NodeId, attempt: int, until: datetime) -> None:
    """This is not shown anywhere, so it is no change of the operation."""
    connection.execute(
        _UPDATE_OPEN, {"row_op": op, "row_node": node, "row_number": attempt, "open_until": until}
    )


def let_go(connection: Connection, now: datetime, owner: FrontendId) -> None:
    """Of what frontends do for themselves: the replies of workers are another matter."""
    connection.execute(_LET_GO, {"row_owner": owner, "until": now})


def answer(connection: Connection, now: datetime, replies: Mapping[AttemptKey, Outcome]) -> None:
    latest = take_turn(connection)
    changed: set[OpId] = set()
    for (op, node, number), outcome in replies.items():
        row = {"row_op": op, "row_node": node, "row_number": number}
        ending = outcome.ending
        note = ending.note if isinstance(ending, DoneWithNote) else None
        reply = {"ended_at": now, "problem": _stored(ending), "note": note}
        if connection.execute(_UPDATE_OPEN, {**row, **reply}).rowcount:
            changed.add(op)
    if changed:
        number_changes(connection, latest, sorted(changed))


_NOT_NEEDED: Final = "cancelled"  # The code of the problem by which every release tells it.


def _stored(ending: Ending) -> Problem | None:
    match ending:
        case NotNeeded(why):
            return Problem(_NOT_NEEDED, why)
        case DoneWithNote():
            return None
        case _:
            return ending


def ending_of(kind: Kind, stored: Problem | None, note: str | None) -> Ending:
    """Only what a frontend carries out itself is found not to be needed."""
    if stored is not None and (kind.of_replica or kind.of_model) and stored.code == _NOT_NEEDED:
        return NotNeeded(stored.message)
    return DoneWithNote(note) if stored is None and note else stored


def note_progress(
    connection: Connection,
    now: datetime,
    noted: Mapping[tuple[OpId, NodeId], Progress],
    silent_for: timedelta = timedelta(),
) -> None:
    latest = take_turn(connection)
    rows = [
        {
            "row_op": row.op_id,
            "row_node": row.node,
            "row_number": row.number,
            "progress": replace(noted[row.op_id, row.node], at=now),
        }
        for batch in batches((op, node, progress.attempt) for (op, node), progress in noted.items())
        for row in connection.execute(_PROGRESS, {"ops": list({op for op, *_ in batch}), "keys": batch}).all()
        if (row.progress is None or row.progress.fraction <= noted[row.op_id, row.node].fraction)
        and now - _last_kept(row) >= silent_for
    ]
    if not rows:
        return
    for batch in batches(rows):
        connection.execute(_UPDATE_OPEN, batch)
    number_changes(connection, latest, sorted({OpId(row["row_op"]) for row in rows}))


def _last_kept(row: Held) -> datetime:
    kept_at: datetime | None = None if row.progress is None else row.progress.at
    begun_at: datetime = row.begun_at
    return kept_at or begun_at


def note_inventory(
    connection: Connection, at: datetime, node: NodeId, boot: BootId, backends: Sequence[InstalledArtifact]
) -> None:
    """The latest word of a node; nothing where it has been removed meanwhile."""
    listed = {"boot": boot, "listed_at": at, "backends": tuple(backends)}
    of_node = node_inventories.c.node_id == node
    if connection.execute(update(node_inventories).where(of_node).values(listed)).rowcount:
        return
    columns = [node_inventories.c[name] for name in listed]
    values = [literal(value, column.type) for column, value in zip(columns, listed.values(), strict=True)]
    fresh = select(nodes.c.id, *values).where(nodes.c.id == node)
    connection.execute(insert(node_inventories).from_select(["node_id", *listed], fresh))
