"""FleetStore on SQL. Reads rows, lets the callables decide, writes rows: no rule of the fleet lives here."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from remuda.core import limits
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet import admission
from remuda.fleet.admission import Beat
from remuda.fleet.fleet import Fleet
from remuda.fleet.model import Dial, HistoryEntry, Node
from remuda.fleet.ports import Note
from remuda.store import hearing
from remuda.store.database import Database
from remuda.store.nodes import (
    BY_ID,
    BY_NAME,
    KnownNodes,
    insert_node,
    lock_node,
    lock_without_labels,
    read_nodes,
    unknown_node,
    update_heard,
    update_node,
)
from remuda.store.schema import history, node_dials, nodes, revoked_bus_keys

Decide = Callable[[Node | None, Fleet], Node]
Change = Callable[[Node], Node]

# Built once: these run again and again.
_DIALS = select(node_dials).where(hearing.LISTENED_LATELY).order_by(node_dials.c.frontend)
_DIALS_OF_NODE = _DIALS.where(node_dials.c.node_id == bindparam("node"))
_DIALLED = (
    select(nodes.c.id, nodes.c.boot_id)
    .where(nodes.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(nodes.c.id)
    .with_for_update(read=True, key_share=True)
)
_DELETE_DIAL = delete(node_dials).where(
    node_dials.c.node_id == bindparam("dialled"), node_dials.c.frontend == bindparam("dialled_from")
)
_FORGET_DIALS = delete(node_dials).where(node_dials.c.node_id == bindparam("dialled"))
_INSERT_DIAL = insert(node_dials)
_INSERT_ENTRY = insert(history)
_FORGET_ENTRIES = delete(history).where(history.c.id <= bindparam("last_forgotten"))


class SqlFleetStore:
    """Implements fleet.ports.FleetStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = KnownNodes()

    async def register(self, name: str, decide: Decide) -> Node:
        return await self._database.transact(lambda c, now: _register(c, now, name, decide))

    async def amend(self, node_id: NodeId, change: Change, note: Note | None = None) -> Node:
        return await self._database.transact(lambda c, now: _amend(c, now, node_id, change, note))

    async def remove(self, node_id: NodeId, note: Note, revoke: Sequence[str] = ()) -> Node:
        return await self._database.transact(lambda c, now: _remove(c, now, node_id, note, frozenset(revoke)))

    async def beat(self, beats: Sequence[Beat]) -> frozenset[NodeId]:
        if not beats:
            return frozenset()
        return await self._database.transact(lambda c, now: _beat(c, now, beats))

    async def fleet(self) -> Fleet:
        return await self._database.read(lambda c, now: _all(c, now, self._known))

    async def one(self, node_id: NodeId) -> Fleet:
        return await self._database.read(lambda c, now: _one(c, now, node_id))

    async def listen(self, frontend: FrontendId, *, resumed: bool) -> None:
        await self._database.transact(lambda c, now: hearing.listen(c, now, frontend, resumed=resumed))

    async def frontends(self) -> frozenset[FrontendId]:
        return await self._database.read(hearing.listeners)

    async def record_dials(self, dials: Sequence[Dial]) -> None:
        if dials:
            await self._database.transact(lambda c, now: _record_dials(c, dials))

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        return await self._database.read(lambda c, now: _history(c, node_name, limit))

    async def revoked(self) -> dict[str, datetime]:
        return await self._database.read(lambda c, now: _revoked(c))


def _register(connection: Connection, now: datetime, name: str, decide: Decide) -> Node:
    held = read_nodes(connection, BY_NAME, {"node_name": name}, lock=True)
    fleet = Fleet(now, hearing.read_hearing(connection), ())
    if not held:
        node = decide(None, fleet)
        insert_node(connection, node)
        _note(connection, now, node, Note("registered"))
        return node
    known = held[0]
    node = decide(known, fleet)
    update_node(connection, known, node)
    if (node.boot_id, node.http_address) != (known.boot_id, known.http_address):
        # What was found at the old address, or while the worker was down, says nothing of it now.
        connection.execute(_FORGET_DIALS, {"dialled": node.id})
    if node.boot_id != known.boot_id:
        _note(connection, now, node, Note("restarted"))
    return node


def _amend(connection: Connection, now: datetime, node_id: NodeId, change: Change, note: Note | None) -> Node:
    known = lock_node(connection, node_id)
    node = replace(change(known), updated_at=now)
    update_node(connection, known, node)
    if note is not None:
        _note(connection, now, node, note)
    return node


def _remove(
    connection: Connection, now: datetime, node_id: NodeId, note: Note, revoke: frozenset[str]
) -> Node:
    node = lock_node(connection, node_id)
    _note(connection, now, node, note)
    connection.execute(delete(nodes).where(nodes.c.id == node_id))
    if revoke:
        connection.execute(delete(revoked_bus_keys).where(revoked_bus_keys.c.public_key.in_(revoke)))
        connection.execute(
            insert(revoked_bus_keys), [{"public_key": key, "revoked_at": now} for key in sorted(revoke)]
        )
    return node


def _beat(connection: Connection, now: datetime, beats: Sequence[Beat]) -> frozenset[NodeId]:
    known = lock_without_labels(connection, {beat.node_id for beat in beats})
    heard: dict[NodeId, Node] = {}
    strangers: set[NodeId] = set()
    for beat in beats:
        node = heard.get(beat.node_id) or known.get(beat.node_id)
        if node is not None and admission.speaks_for(beat, node):
            heard[node.id] = admission.heard(node, beat, now)
        else:
            strangers.add(beat.node_id)
    update_heard(connection, [replace(node, updated_at=now) for node in heard.values()])
    return frozenset(strangers)


def _all(connection: Connection, now: datetime, known: KnownNodes) -> Fleet:
    found = known.read(connection)
    return _snapshot(connection, now, found, connection.execute(_DIALS, hearing.lately(now)))


def _one(connection: Connection, now: datetime, node_id: NodeId) -> Fleet:
    this = {"node": node_id}
    found = read_nodes(connection, BY_ID, this)
    if not found:
        raise unknown_node(node_id)
    dialled = connection.execute(_DIALS_OF_NODE, {**hearing.lately(now), **this})
    return _snapshot(connection, now, found, dialled)


def _snapshot(
    connection: Connection, now: datetime, found: Sequence[Node], dialled: Iterable[Row[tuple[object]]]
) -> Fleet:
    dials: defaultdict[NodeId, list[Dial]] = defaultdict(list)
    for dial in dialled:
        node_id = NodeId(dial.node_id)
        dials[node_id].append(Dial(node_id, dial.frontend, dial.problem, dial.checked_at))
    return Fleet(now, hearing.read_hearing(connection), found, dict(dials))


def _record_dials(connection: Connection, dials: Sequence[Dial]) -> None:
    """The latest word per node and frontend; nodes that were removed or restarted meanwhile are left out."""
    asked = sorted({dial.node_id for dial in dials})
    boots = {row.id: row.boot_id for row in connection.execute(_DIALLED, {"ids": asked})}
    # Written in one order by everyone, for the sake of frontends that write the same rows at once.
    in_order = sorted(dials, key=lambda dial: (dial.node_id, dial.frontend))
    latest = {
        (dial.node_id, dial.frontend): dial
        for dial in in_order
        if dial.node_id in boots and dial.boot_id in (None, boots[dial.node_id])
    }
    if not latest:
        return
    connection.execute(
        _DELETE_DIAL, [{"dialled": node_id, "dialled_from": frontend} for node_id, frontend in latest]
    )
    connection.execute(
        _INSERT_DIAL,
        [
            {
                "node_id": dial.node_id,
                "frontend": dial.frontend,
                "problem": dial.problem,
                "checked_at": dial.checked_at,
            }
            for dial in latest.values()
        ],
    )


def _note(connection: Connection, now: datetime, node: Node, note: Note) -> None:
    entry = {"at": now, "node_id": node.id, "node_name": node.name, **asdict(note)}
    newest = connection.execute(_INSERT_ENTRY, entry).inserted_primary_key
    assert newest is not None
    connection.execute(_FORGET_ENTRIES, {"last_forgotten": newest.id - limits.HISTORY_ROWS_MAX})


def _history(connection: Connection, node_name: str | None, limit: int) -> list[HistoryEntry]:
    query = select(history).order_by(history.c.id.desc()).limit(limit)
    if node_name is not None:
        query = query.where(history.c.node_name == node_name)
    return [
        HistoryEntry(
            at=entry.at,
            node_id=None if entry.node_id is None else NodeId(entry.node_id),
            node_name=entry.node_name,
            event=entry.event,
            detail=entry.detail,
            actor=entry.actor,
        )
        for entry in connection.execute(query)
    ]


def _revoked(connection: Connection) -> dict[str, datetime]:
    return {key.public_key: key.revoked_at for key in connection.execute(select(revoked_bus_keys))}
