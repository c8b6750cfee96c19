"""ModelStore and ReplicaStore on SQL: configured models and their replicas. Reads rows, compares, writes
rows: where replicas go is decided in scheduler. Names of models are unique in the form they have on the
bus, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import anyio
from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, or_, select, update

from remuda.core import limits
from remuda.core.errors import Conflict, NotFound
from remuda.core.ids import BootId, FrontendId, NodeId, ReplicaKey
from remuda.models.files import Manifest
from remuda.ops.model import FRONTENDS, Operation, OpId, State, Step, UnloadCause, UnloadReason, Wish
from remuda.scheduler.model import ADDED, Renaming, Replica, Replicas, ReplicaState, SeenFacts, StoredModel
from remuda.store import ops_intents
from remuda.store.connections import unusable
from remuda.store.database import Database
from remuda.store.ops_codec import reason_of, stored_reason
from remuda.store.ops_intents import Wished
from remuda.store.ops_rows import batches, take_turn
from remuda.store.scheduling import remove_scheduling, rename_scheduling
from remuda.store.schema import (
    ColumnValues,
    api_keys,
    model_scheduling,
    models,
    nodes,
    on_its_way,
    operations,
    replica_change_count,
    replicas,
    steps,
)
from remuda.wire.subjects import token


class SqlModelStore:
    """Implements scheduler.ports.ModelStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def models(self) -> Sequence[StoredModel]:
        return await self._database.read(lambda c, now: _models(c))

    async def put_model(self, model: StoredModel) -> StoredModel:
        return await self._database.transact(lambda c, now: _put(c, now, model))

    async def put_new(self, model: StoredModel) -> StoredModel | None:
        return await self._database.transact(lambda c, now: _put_new(c, now, model))

    async def put_from_file(self, model: StoredModel) -> StoredModel | None:
        return await self._database.transact(lambda c, now: _put_from_file(c, now, model))

    async def change_model(self, before: StoredModel, after: StoredModel) -> StoredModel | None:
        assert before.name == after.name, "a new name is another call"
        return await self._database.transact(lambda c, now: _change(c, now, before, after))

    async def rename_model(self, renaming: Renaming) -> tuple[str, ...] | None:
        return await self._database.transact(lambda c, now: _rename(c, now, renaming))

    async def put_installed(
        self, model: StoredModel, before: StoredModel | None, op: OpId, attempt: int
    ) -> StoredModel | None:
        return await self._database.transact(
            lambda c, now: _put_installed(c, now, model, before, op, attempt)
        )

    async def remove_written(self, name: str, written_at: str) -> StoredModel | None:
        return await self._database.transact(lambda c, now: _remove_written(c, name, written_at))

    async def note_seen(self, model: StoredModel, seen: SeenFacts) -> None:
        same = and_(models.c.name == model.name, models.c.text == model.text)
        noting = update(models).where(same).values(seen=seen)
        await self._database.transact(lambda c, now: c.execute(noting) and None)

    async def describe_model(self, model: StoredModel, manifest: Manifest) -> bool:
        return await self._database.transact(lambda c, _: _describe(c, model, manifest))

    async def remove_model(self, name: str) -> StoredModel:
        return await self._database.transact(lambda c, now: _remove_model(c, name))


def _models(connection: Connection) -> list[StoredModel]:
    scheduled = model_scheduling.c.model == models.c.name
    every = select(models, model_scheduling.c.terms).outerjoin(model_scheduling, scheduled)
    found = connection.execute(every.order_by(models.c.name)).all()
    return [replace(_model(row), terms=row.terms) for row in found]


def _is_known(connection: Connection, model: StoredModel) -> bool:
    """Conflict when another's name is the same on a subject."""
    alike = select(models.c.name).where(models.c.subject_token == token(model.name))
    known = connection.scalar(alike.with_for_update())
    if known is not None and known != model.name:
        raise Conflict(
            f"the model {model.name!r} would have the same name on the bus as {known!r}",
            hint="choose a name that differs in more than dots and spaces, or remove the other model",
        )
    return known is not None


def _put(connection: Connection, now: datetime, model: StoredModel) -> StoredModel:
    if not _is_known(connection, model):
        return _insert(connection, now, model)
    columns = {"text": model.text, "revision": model.revision, "origin": model.origin, "updated_at": now}
    connection.execute(update(models).where(models.c.name == model.name).values(**columns))
    return replace(model, updated_at=now)


def _insert(connection: Connection, now: datetime, model: StoredModel) -> StoredModel:
    columns = {"text": model.text, "revision": model.revision, "origin": model.origin, "updated_at": now}
    connection.execute(insert(models).values(name=model.name, subject_token=token(model.name), **columns))
    return replace(model, updated_at=now)


def _put_new(connection: Connection, now: datetime, model: StoredModel) -> StoredModel | None:
    # Looked for once: another insert after this look makes ours fail, and the transaction begins again.
    return None if _is_known(connection, model) else _insert(connection, now, model)


def _put_from_file(connection: Connection, now: datetime, model: StoredModel) -> StoredModel | None:
    origin = select(models.c.origin).where(models.c.name == model.name)
    added = connection.scalar(origin.with_for_update()) == ADDED
    return None if added else _put(connection, now, model)


def _change(
    connection: Connection, now: datetime, before: StoredModel, after: StoredModel
) -> StoredModel | None:
    if not _is_still(connection, before):
        return None
    columns = {"text": after.text, "revision": after.revision, "origin": after.origin, "updated_at": now}
    connection.execute(update(models).where(models.c.name == after.name).values(**columns))
    return replace(after, updated_at=now)


def _describe(connection: Connection, model: StoredModel, manifest: Manifest) -> bool:
    """No change of the model: it stays as written when it was."""
    row = connection.execute(
        select(models).where(models.c.name == model.name).with_for_update()
    ).one_or_none()
    if row is None or row.manifest != model.manifest:
        return False
    connection.execute(update(models).where(models.c.name == model.name).values(manifest=manifest))
    return True


def _is_still(connection: Connection, model: StoredModel) -> bool:
    row = connection.execute(
        select(models).where(models.c.name == model.name).with_for_update()
    ).one_or_none()
    return row is not None and (row.text, row.origin) == (model.text, model.origin)


def _rename(connection: Connection, now: datetime, renaming: Renaming) -> tuple[str, ...] | None:
    before, after = renaming.before, renaming.after
    every = sorted((before, *(one for one, _ in renaming.others)), key=lambda one: one.name)
    if not all([_is_still(connection, one) for one in every]):  # Each of them is locked.
        return None
    alike = models.c.subject_token == token(after.name)
    taken = connection.scalar(select(models.c.name).where(alike, models.c.name != before.name))
    if taken is not None:
        words = (
            f"there is a model named {taken!r} already"
            if taken == after.name
            else (f"the model {after.name!r} would have the same name on the bus as {taken!r}")
        )
        raise Conflict(words, hint="choose another name, or remove the other model")
    # The row stays the same one: whatever else is stored with the model comes along.
    names = {"name": after.name, "subject_token": token(after.name)}
    connection.execute(update(models).where(models.c.name == before.name).values(**names))
    rename_scheduling(connection, before.name, after.name)
    _change(connection, now, replace(before, name=after.name), after)
    for one, other in renaming.others:
        _change(connection, now, one, other)
    if renaming.kept is not None:
        _put(connection, now, renaming.kept)
    kept = () if renaming.kept is None else (before.name,)
    return _rename_in_keys(connection, before.name, (after.name, *kept))


def _rename_in_keys(connection: Connection, before: str, after: tuple[str, ...]) -> tuple[str, ...]:
    """Keys that are limited to some models and name this one."""
    active = select(api_keys).where(api_keys.c.revoked_at.is_(None)).order_by(api_keys.c.name)
    found = [row for row in connection.execute(active.with_for_update()).all() if before in row.models]
    for row in found:
        named = tuple(
            dict.fromkeys(new for name in row.models for new in (after if name == before else (name,)))
        )
        connection.execute(update(api_keys).where(api_keys.c.id == row.id).values(models=named))
    return tuple(row.name for row in found)


_AT_IT: Final = (
    select(steps.c.op_id)
    .join(operations, operations.c.id == steps.c.op_id)
    .where(
        steps.c.op_id == bindparam("op"),
        steps.c.node == FRONTENDS,
        steps.c.attempt == bindparam("attempt"),
        steps.c.state == State.RUNNING,
        steps.c.replaced_by.is_(None),
        operations.c.wish == Wish.RUN,
    )
)


def _put_installed(
    connection: Connection,
    now: datetime,
    model: StoredModel,
    before: StoredModel | None,
    op: OpId,
    attempt: int,
) -> StoredModel | None:
    take_turn(connection)  # From here on no other takes the attempt away.
    if connection.scalar(_AT_IT, {"op": op, "attempt": attempt}) is None:
        return None
    found = connection.execute(
        select(models).where(models.c.name == model.name).with_for_update()
    ).one_or_none()
    if found is None and before is not None:  # It was removed meanwhile, and stays so.
        return None
    known = None if before is None else (before.text, before.origin)
    if found is not None and (found.text, found.origin) != known:
        raise Conflict(
            f"{model.name} was {'added' if before is None else 'changed'} while it was being installed",
            hint="look at it with: remuda models show; then install it again, or under another name",
        )
    put = _put(connection, now, model)
    brought = {"manifest": model.manifest, "kept_by": model.kept_by or ""}
    connection.execute(update(models).where(models.c.name == model.name).values(**brought))
    return put


def _remove_model(connection: Connection, name: str) -> StoredModel:
    row = connection.execute(select(models).where(models.c.name == name).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no model named {name!r}", hint="list the models to see their names")
    connection.execute(delete(models).where(models.c.name == name))
    remove_scheduling(connection, name)
    return _model(row)


def _remove_written(connection: Connection, name: str, written_at: str) -> StoredModel | None:
    row = connection.execute(select(models).where(models.c.name == name).with_for_update()).one_or_none()
    if row is None or row.updated_at.isoformat() != written_at:
        return None
    connection.execute(delete(models).where(models.c.name == name))
    remove_scheduling(connection, name)
    return _model(row)


def _model(row: Row[tuple[object]]) -> StoredModel:
    kept_by = FrontendId(row.kept_by) if row.kept_by else None
    return StoredModel(
        row.name,
        row.text,
        row.revision,
        row.origin,
        row.updated_at,
        row.manifest,
        kept_by,
        seen=row.seen,
    )


_LATEST: Final = select(replica_change_count.c.latest)
_LATEST_LOCKED: Final = _LATEST.with_for_update()
_ALL: Final = select(replicas).order_by(replicas.c.model, replicas.c.number)
_ROW: Final = and_(replicas.c.model == bindparam("row_model"), replicas.c.number == bindparam("row_number"))
_ONE: Final = select(replicas).where(_ROW)
_UPDATE: Final = update(replicas).where(_ROW)
_EVICT: Final = _UPDATE.where(replicas.c.state == ReplicaState.LOADED)
_TOUCH: Final = _UPDATE.where(
    or_(replicas.c.last_used.is_(None), replicas.c.last_used < bindparam("used"))
).values(last_used=bindparam("used"))
_REMOVE: Final = delete(replicas).where(_ROW, replicas.c.change == bindparam("row_change"))
_COMING: Final = select(replicas).where(on_its_way, replicas.c.model == bindparam("model"))
_NODES_OF: Final = select(replicas.c.node_id).where(replicas.c.model.in_(bindparam("models", expanding=True)))


class SqlReplicaStore:
    """Implements scheduler.ports.ReplicaStore. Each method is one transaction. The changes come one after
    another, as the numbers they get."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claiming = anyio.Lock(fast_acquire=True)  # Waiting for a turn here takes no connection.

    async def replicas(self) -> Replicas:
        return await self._database.read(_replicas)

    async def latest_change(self) -> int:
        """The number of the last change to any replica, for those who only want to know whether to look."""
        return await self._database.read(lambda c, now: _latest(c))

    async def claim(
        self,
        replica: Replica,
        operation: Operation,
        step: Step,
        seen: int,
        evict: Collection[ReplicaKey],
        *,
        alone: bool = True,
    ) -> Replica | None:
        wished = Wished(operation, (step,))
        try:
            with anyio.fail_after(limits.OPERATIONS_TURN_S):
                async with self._claiming:
                    return await self._database.transact(
                        lambda c, now: _claim(c, now, replica, wished, seen, evict, alone=alone)
                    )
        except TimeoutError:
            raise unusable(self._database.name, "too many replicas are claimed at once") from None

    async def move(self, before: Replica, after: Replica, seen: int | None = None) -> Replica | None:
        assert (before.key, before.node) == (after.key, after.node), "a replica stays where it is"
        return await self._database.transact(lambda c, now: _move(c, now, before, after, seen))

    async def remove(self, replica: Replica) -> bool:
        return await self._database.transact(lambda c, now: _remove(c, replica))

    async def touch(self, used: Mapping[ReplicaKey, timedelta]) -> None:
        if used:
            await self._database.transact(lambda c, now: _touch(c, now, used))


def _replicas(connection: Connection, now: datetime) -> Replicas:
    rows = tuple(_replica(row) for row in connection.execute(_ALL).all())
    return Replicas(now, _latest(connection), rows)


def _latest(connection: Connection) -> int:
    latest: int = connection.scalars(_LATEST).one()
    return latest


def _claim(
    connection: Connection,
    now: datetime,
    replica: Replica,
    wished: Wished,
    seen: int,
    evict: Collection[ReplicaKey],
    *,
    alone: bool,
) -> Replica | None:
    take_turn(connection)  # Before that of replicas, so that those who only move one need not wait for it.
    latest = _take_turn(connection)
    there = _at(connection, replica.key)
    if there is not None and there.op == wished.operation.id:
        return there  # Its answer was lost, and it is sent again.
    if alone:
        _refuse_second(connection, replica.key.model)
    if latest != seen or not _hold_nodes(connection, replica.node, evict):
        return None
    if there is not None:
        raise Conflict(f"the replica {replica.key} is there already; it is {there.state}")
    [submitted] = ops_intents.submit(connection, now, [wished])
    if isinstance(submitted, Conflict):
        raise submitted
    written = replace(
        replica,
        op=submitted.operation.id,
        created_at=now,
        updated_at=now,
        last_used=None,
        change=_count(connection, latest),
    )
    connection.execute(insert(replicas), _columns(written))
    _mark_evicted(connection, written, evict)
    return written


def _move(
    connection: Connection, now: datetime, before: Replica, after: Replica, seen: int | None
) -> Replica | None:
    latest = _take_turn(connection)
    there = _at(connection, before.key)
    if there is None or there.change != before.change or seen not in (None, latest):
        return None
    written = replace(
        after,
        created_at=there.created_at,
        updated_at=now,
        last_used=there.last_used,  # Only `touch` changes it: `before` may be from earlier than the last use.
        change=_count(connection, latest),
    )
    found = connection.execute(_UPDATE, {**_row_of(written.key), **_changing_columns(written)}).rowcount
    return written if found else None  # Its node may have been removed a moment ago.


def _remove(connection: Connection, replica: Replica) -> bool:
    latest = _take_turn(connection)
    which = {**_row_of(replica.key), "row_change": replica.change}
    if not connection.execute(_REMOVE, which).rowcount:
        return False
    _count(connection, latest)
    return True


def _touch(connection: Connection, now: datetime, used: Mapping[ReplicaKey, timedelta]) -> None:
    in_order = sorted(used, key=_in_order)
    for batch in batches(in_order):
        _lock_nodes(connection, (), batch)
        connection.execute(_TOUCH, [{**_row_of(key), "used": now - used[key]} for key in batch])


# Turns and locks.


def _take_turn(connection: Connection) -> int:
    """Wait until no other transaction changes replicas; the newest number. See ops_changes.take_turn."""
    latest: int = connection.scalars(_LATEST_LOCKED).one()
    return latest


def _count(connection: Connection, latest: int) -> int:
    connection.execute(update(replica_change_count).values(latest=latest + 1))
    return latest + 1


def _hold_nodes(connection: Connection, node: NodeId, evict: Collection[ReplicaKey]) -> bool:
    """Whether the node is there. From here on neither it nor the nodes of those to be evicted can be
    removed."""
    return node in _lock_nodes(connection, (node,), evict)


def _lock_nodes(
    connection: Connection, ids: Iterable[NodeId], keys: Iterable[ReplicaKey]
) -> Collection[NodeId]:
    """The removal of a node locks it first and its replicas then: done here in the same order, neither waits
    for the other."""
    of_keys = connection.scalars(_NODES_OF, {"models": sorted({key.model for key in keys})})
    wanted = select(nodes.c.id).where(nodes.c.id.in_({*ids, *of_keys})).order_by(nodes.c.id)
    found = connection.scalars(wanted.with_for_update(read=True, key_share=True))
    return frozenset(NodeId(one) for one in found)


def _refuse_second(connection: Connection, model: str) -> None:
    """However many requests and people ask for a model that is not there, one load of it is begun."""
    coming = connection.execute(_COMING, {"model": model}).first()
    if coming is not None:
        raise Conflict(
            f"{model} is being loaded already, as {_key(coming)} by operation {coming.op_id}",
            hint="wait for that operation, or cancel it",
        )


# Rows.


def _at(connection: Connection, key: ReplicaKey) -> Replica | None:
    row = connection.execute(_ONE, _row_of(key)).one_or_none()
    return None if row is None else _replica(row)


def _mark_evicted(connection: Connection, room_for: Replica, evict: Collection[ReplicaKey]) -> None:
    marks = {
        "state": ReplicaState.UNLOADING,
        **_why_columns(UnloadReason(UnloadCause.MAKES_ROOM, for_replica=room_for.key)),
        "updated_at": room_for.updated_at,
        "change": room_for.change,
    }
    if evict:
        connection.execute(_EVICT, [{**_row_of(key), **marks} for key in sorted(evict, key=_in_order)])


def _in_order(key: ReplicaKey) -> tuple[str, int]:
    return key.model, key.index


def _row_of(key: ReplicaKey) -> ColumnValues:
    return {"row_model": key.model, "row_number": key.index}


def _key(row: Row[tuple[object]]) -> ReplicaKey:
    return ReplicaKey(row.model, row.number)


def _replica(row: Row[tuple[object]]) -> Replica:
    return Replica(
        key=_key(row),
        node=NodeId(row.node_id),
        state=ReplicaState(row.state),
        op=OpId(row.op_id),
        backend=row.backend,
        revision=row.revision,
        memory_bytes=row.memory_bytes,
        in_vram=row.in_vram,
        ram_beside_bytes=row.ram_beside_bytes,
        parallel=row.parallel,
        gpus=row.gpus,
        concurrency_groups=row.concurrency_groups,
        address=row.address,
        protocol=row.protocol,
        path=row.path,
        instance=row.instance,
        boot=None if row.boot is None else BootId(row.boot),
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_used=row.last_used,
        why=reason_of(row.why, row.reason),
        change=row.change,
    )


def _columns(replica: Replica) -> ColumnValues:
    return {
        "model": replica.key.model,
        "number": replica.key.index,
        "node_id": replica.node,
        "created_at": replica.created_at,
        "last_used": replica.last_used,
        **_changing_columns(replica),
    }


def _changing_columns(replica: Replica) -> ColumnValues:
    return {
        "state": replica.state,
        "op_id": replica.op,
        "backend": replica.backend,
        "revision": replica.revision,
        "memory_bytes": replica.memory_bytes,
        "in_vram": replica.in_vram,
        "ram_beside_bytes": replica.ram_beside_bytes,
        "parallel": replica.parallel,
        "gpus": replica.gpus,
        "concurrency_groups": replica.concurrency_groups,
        "address": replica.address,
        "protocol": replica.protocol,
        "path": replica.path,
        "instance": replica.instance,
        "boot": replica.boot,
        "updated_at": replica.updated_at,
        **_why_columns(replica.why),
        "change": replica.change,
    }


def _why_columns(why: UnloadReason | None) -> ColumnValues:
    return {"why": "" if why is None else str(why), "reason": stored_reason(why)}
