"""FleetStore on SQL. Reads rows, lets the callables decide, writes rows: no rule of the fleet lives here."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy import Connection, Row, Table, bindparam, delete, func, insert, select

from remuda.core import limits
from remuda.core.errors import Conflict, NotFound
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet import admission
from remuda.fleet.admission import Beat, HeartbeatOutcome
from remuda.fleet.health import Fleet
from remuda.fleet.model import CommandProbe, Dial, HistoryEntry, Node
from remuda.fleet.ports import OFFLINE, ONLINE, KnownName, Note
from remuda.fleet.registration import Admit, Decision, Hold, Refuse, Supersede, new_name_problem
from remuda.store import fleet_rows
from remuda.store.database import Database
from remuda.store.fleet_rows import (
    BY_ID,
    BY_NAME,
    CLAIMED,
    KnownNodes,
    delete_nodes,
    insert_node,
    lock_node,
    lock_without_labels,
    read_names,
    read_nodes,
    read_pending,
    unknown_node,
    update_heard,
    update_node,
)
from remuda.store.schema import command_probes, history, invites, node_dials, nodes, revoked_bus_keys

F = TypeVar("F", Dial, CommandProbe)

_BOOTS = (
    select(nodes.c.id, nodes.c.boot_id)
    .where(nodes.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(nodes.c.id)
    .with_for_update(read=True, key_share=True)
)


class Findings(Generic[F]):
    """One table of them. Statements are built once: they run again and again."""

    def __init__(
        self, table: Table, make: Callable[[Row[tuple[object]]], F], more: Callable[[F], Mapping[str, object]]
    ) -> None:
        """`more`: the columns that only this table has."""
        columns = table.c
        self._make: Callable[[Row[tuple[object]]], F] = make
        self._more: Callable[[F], Mapping[str, object]] = more
        self._all = select(table).where(fleet_rows.listened_lately(table)).order_by(columns.frontend)
        self._of_node = self._all.where(columns.node_id == bindparam("node"))
        self._forget = delete(table).where(columns.node_id == bindparam("called"))
        self._replace = self._forget.where(columns.frontend == bindparam("caller"))
        self._insert = insert(table)

    def read(
        self, connection: Connection, now: datetime, node_id: NodeId | None = None
    ) -> Mapping[NodeId, Sequence[F]]:
        """Of frontends that are still there; of one node, or of all."""
        if node_id is None:
            rows = connection.execute(self._all, fleet_rows.lately(now))
        else:
            rows = connection.execute(self._of_node, {**fleet_rows.lately(now), "node": node_id})
        found: defaultdict[NodeId, list[F]] = defaultdict(list)
        for row in rows:
            one = self._make(row)
            found[one.node_id].append(one)
        return dict(found)

    def record(self, connection: Connection, found: Sequence[F]) -> None:
        """Nodes that were removed or restarted meanwhile are left out."""
        ids = sorted({one.node_id for one in found})
        boots = {row.id: row.boot_id for row in connection.execute(_BOOTS, {"ids": ids})}
        # Written in one order by everyone, for the sake of frontends that write the same rows at once.
        in_order = sorted(found, key=lambda one: (one.node_id, one.frontend))
        latest = {
            (one.node_id, one.frontend): one
            for one in in_order
            if one.node_id in boots and one.boot_id in (None, boots[one.node_id])
        }
        if not latest:
            return
        connection.execute(self._replace, [{"called": node, "caller": by} for node, by in latest])
        connection.execute(
            self._insert,
            [
                {
                    "node_id": one.node_id,
                    "frontend": one.frontend,
                    "problem": one.problem,
                    "checked_at": one.checked_at,
                    **self._more(one),
                }
                for one in latest.values()
            ],
        )

    def forget(self, connection: Connection, node_id: NodeId) -> None:
        connection.execute(self._forget, {"called": node_id})


def _dial(row: Row[tuple[object]]) -> Dial:
    node_id = NodeId(row.node_id)
    return Dial(node_id, row.frontend, row.problem, row.checked_at, bus_closed=row.bus_closed)


def _probe(row: Row[tuple[object]]) -> CommandProbe:
    return CommandProbe(NodeId(row.node_id), row.frontend, row.problem, row.checked_at)


DIALS = Findings(node_dials, _dial, lambda dial: {"bus_closed": dial.bus_closed})
PROBES = Findings(command_probes, _probe, lambda probe: {})


Decide = Callable[[KnownName], Decision]
Succeed = Callable[[Node, Fleet], Supersede]
NodeChange = Callable[[Node], Node]
KeysOf = Callable[[NodeId], Sequence[str]]

# Built once: these run again and again.
_INSERT_ENTRY = insert(history)
_INVITE = select(invites.c.nonce).where(invites.c.name == bindparam("invited"))
_INVITE_KEPT = _INVITE.with_for_update(read=True)  # Cannot be withdrawn until the transaction ends.
_INVITED = select(invites.c.name)
_LAST_OUTAGES = select(history.c.node_id, history.c.event).where(
    history.c.id.in_(
        select(func.max(history.c.id))
        .where(history.c.node_id.in_(bindparam("noted", expanding=True)))
        .where(history.c.event.in_([OFFLINE, ONLINE]))
        .group_by(history.c.node_id)
    )
)
_FORGET_ENTRIES = delete(history).where(history.c.id <= bindparam("last_forgotten"))


class SqlFleetStore:
    """Implements fleet.ports.FleetStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = KnownNodes()

    async def register(self, name: str, decide: Decide) -> Decision:
        return await self._database.transact(lambda c, now: _register(c, now, name, decide))

    async def supersede(self, claim_id: NodeId, decide: Succeed, note: Note) -> Supersede:
        return await self._database.transact(lambda c, now: _supersede_by(c, now, claim_id, decide, note))

    async def invite(self, name: str, nonce: str, note: Note) -> str:
        return await self._database.transact(lambda c, now: _invite(c, now, name, nonce, note))

    async def withdraw_invite(
        self, name: str, change: NodeChange, keys_of: KeysOf, note: Note
    ) -> Node | None:
        return await self._database.transact(
            lambda c, now: _withdraw_invite(c, now, name, change, keys_of, note)
        )

    async def amend(self, node_id: NodeId, change: NodeChange, note: Note | None = None) -> Node:
        return await self._database.transact(lambda c, now: _amend(c, now, node_id, change, note))

    async def remove(self, node_id: NodeId, note: Note, revoke: Sequence[str] = ()) -> Node:
        return await self._database.transact(lambda c, now: _remove(c, now, node_id, note, frozenset(revoke)))

    async def beat(self, beats: Sequence[Beat]) -> Sequence[HeartbeatOutcome]:
        if not beats:
            return ()
        return await self._database.transact(lambda c, now: _beat(c, now, beats))

    async def fleet(self) -> Fleet:
        return await self._database.read(lambda c, now: _all(c, now, self._known))

    async def one(self, node_id: NodeId) -> Fleet:
        return await self._database.read(lambda c, now: _one(c, now, node_id))

    async def listen(self, frontend: FrontendId, *, resumed: bool) -> None:
        await self._database.transact(lambda c, now: fleet_rows.listen(c, now, frontend, resumed=resumed))

    async def frontends(self) -> frozenset[FrontendId]:
        return await self._database.read(fleet_rows.listeners)

    async def record_dials(self, dials: Sequence[Dial]) -> None:
        if dials:
            await self._database.transact(lambda c, now: DIALS.record(c, dials))

    async def record_probes(self, probes: Sequence[CommandProbe]) -> None:
        if probes:
            await self._database.transact(lambda c, now: PROBES.record(c, probes))

    async def note_outages(self, notes: Sequence[tuple[NodeId, Note]]) -> None:
        if notes:
            await self._database.transact(lambda c, now: _note_outages(c, now, notes))

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        return await self._database.read(lambda c, now: _history(c, node_name, limit))

    async def revoked(self) -> dict[str, datetime]:
        return await self._database.read(lambda c, now: _revoked(c))


def _register(connection: Connection, now: datetime, name: str, decide: Decide) -> Decision:
    invite = connection.scalar(_INVITE_KEPT, {"invited": name}) or ""
    held = read_nodes(connection, BY_NAME, {"node_name": name}, lock=True)
    known = held[0] if held else None
    decision = decide(
        KnownName(
            known,
            Fleet(now, fleet_rows.read_listening(connection), ()),
            invite=invite,
            pending=() if held else read_pending(connection),
            names=() if held else _names(connection),
        )
    )
    match decision:
        case Admit(node, forget):
            _forget(connection, now, forget)
            _admit(connection, now, known, node)
        case Supersede():
            _supersede(connection, now, decision)
        case Hold(holder, claim, new):
            assert known is not None, "only the name of a known node can be claimed"
            update_node(connection, known, holder)
            if new:
                where = f"by a machine at {claim.registration.source or 'an unknown address'}"
                _note(connection, now, holder, Note("name_claimed", where))
        case Refuse(_, contested):
            if contested is not None and known is not None:
                update_node(connection, known, contested)
                where = f"a registration from {contested.contested_from} was refused"
                _note(connection, now, contested, Note("name_contested", where))
    return decision


def _admit(connection: Connection, now: datetime, known: Node | None, node: Node) -> None:
    if known is None:
        insert_node(connection, node)
        _note(connection, now, node, Note("registered"))
        return
    update_node(connection, known, node)
    if (node.boot_id, node.http_address) != (known.boot_id, known.http_address):
        # What was found at the old address, or while the worker was down, says nothing of it now.
        DIALS.forget(connection, node.id)
    if node.boot_id != known.boot_id:
        PROBES.forget(connection, node.id)
        _note(connection, now, node, Note("restarted"))
    if node.identified_by is not known.identified_by:
        _note(connection, now, node, Note("identified", f"by {node.identified_by}"))


def _forget(connection: Connection, now: datetime, ids: Sequence[NodeId]) -> None:
    for node_id in ids:
        node = lock_node(connection, node_id)
        _note(connection, now, node, Note("forgotten", "it waited for approval and was silent for an hour"))
    if ids:
        delete_nodes(connection, ids)


def _supersede(connection: Connection, now: datetime, decision: Supersede) -> None:
    """The former's name is free only once its row is gone."""
    former, node = decision.former, decision.node
    _note(connection, now, former, Note("superseded", f"by {node.id}"))
    delete_nodes(connection, [former.id])
    _revoke(connection, now, decision.revoke)
    insert_node(connection, node)
    _note(connection, now, node, Note("registered"))


def _supersede_by(
    connection: Connection, now: datetime, claim_id: NodeId, decide: Succeed, note: Note
) -> Supersede:
    claimed = read_nodes(connection, CLAIMED, {}, lock=True)
    holder = next((node for node in claimed if node.claim is not None and node.claim.id == claim_id), None)
    if holder is None:
        raise unknown_node(claim_id)
    decision = decide(holder, Fleet(now, fleet_rows.read_listening(connection), ()))
    _supersede(connection, now, decision)
    _note(connection, now, decision.node, note)
    return decision


def _invite(connection: Connection, now: datetime, name: str, nonce: str, note: Note) -> str:
    held: str | None = connection.scalar(_INVITE, {"invited": name})
    if held is not None:
        return held
    known = read_nodes(connection, BY_NAME, {"node_name": name}, lock=True)
    if known and known[0].secret_hash:
        raise Conflict(
            f"the node {name!r} proves itself with a secret of its own and needs no invite",
            hint="to let another machine have the name, remove the node first: remuda nodes remove",
        )
    if not known and (problem := new_name_problem(name, _names(connection))) is not None:
        raise problem
    connection.execute(insert(invites), {"name": name, "nonce": nonce, "created_at": now})
    _write_note(connection, now, known[0].id if known else None, name, note)
    return nonce


def _names(connection: Connection) -> list[str]:
    return [*read_names(connection), *connection.scalars(_INVITED)]


def _withdraw_invite(
    connection: Connection, now: datetime, name: str, change: NodeChange, keys_of: KeysOf, note: Note
) -> Node | None:
    if connection.execute(delete(invites).where(invites.c.name == name)).rowcount == 0:
        raise NotFound(f"there is no invite for a node named {name!r}")
    held = read_nodes(connection, BY_NAME, {"node_name": name}, lock=True)
    known = held[0] if held else None
    _write_note(connection, now, known.id if known else None, name, note)
    if known is None or (node := change(known)) == known:
        return None
    node = replace(node, updated_at=now)
    update_node(connection, known, node)
    _revoke(connection, now, keys_of(node.id))
    return node


def _amend(
    connection: Connection, now: datetime, node_id: NodeId, change: NodeChange, note: Note | None
) -> Node:
    known = lock_node(connection, node_id)
    node = change(replace(known, updated_at=now))
    update_node(connection, known, node)
    if note is not None:
        _note(connection, now, node, note)
    return node


def _remove(
    connection: Connection, now: datetime, node_id: NodeId, note: Note, revoke: frozenset[str]
) -> Node:
    node = lock_node(connection, node_id)
    _note(connection, now, node, note)
    delete_nodes(connection, [node_id])
    connection.execute(delete(invites).where(invites.c.name == node.name))
    _revoke(connection, now, revoke)
    return node


def _revoke(connection: Connection, now: datetime, keys: Collection[str]) -> None:
    if not keys:
        return
    connection.execute(delete(revoked_bus_keys).where(revoked_bus_keys.c.public_key.in_(keys)))
    connection.execute(
        insert(revoked_bus_keys), [{"public_key": key, "revoked_at": now} for key in sorted(keys)]
    )


def _beat(connection: Connection, now: datetime, beats: Sequence[Beat]) -> list[HeartbeatOutcome]:
    known = lock_without_labels(connection, {beat.node_id for beat in beats})
    beaten: dict[NodeId, Node] = {}
    outcomes: list[HeartbeatOutcome] = []
    for beat in beats:
        node = beaten.get(beat.node_id) or known.get(beat.node_id)
        outcomes.append(admission.hears(beat, node))
        if node is not None and outcomes[-1] is HeartbeatOutcome.TAKEN:
            beaten[node.id] = admission.heard(node, beat, now)
    update_heard(connection, [replace(node, updated_at=now) for node in beaten.values()])
    return outcomes


def _all(connection: Connection, now: datetime, known: KnownNodes) -> Fleet:
    return _snapshot(connection, now, known.read(connection))


def _one(connection: Connection, now: datetime, node_id: NodeId) -> Fleet:
    found = read_nodes(connection, BY_ID, {"node": node_id})
    if not found:
        raise unknown_node(node_id)
    return _snapshot(connection, now, found, node_id)


def _snapshot(
    connection: Connection, now: datetime, found: Sequence[Node], node_id: NodeId | None = None
) -> Fleet:
    dials, probes = (DIALS.read(connection, now, node_id), PROBES.read(connection, now, node_id))
    return Fleet(now, fleet_rows.read_listening(connection), found, dials, probes)


def _note(connection: Connection, now: datetime, node: Node, note: Note) -> None:
    _write_note(connection, now, node.id, node.name, note)


def _write_note(connection: Connection, now: datetime, node_id: NodeId | None, name: str, note: Note) -> None:
    entry = {"at": now, "node_id": node_id, "node_name": name, **asdict(note)}
    newest = connection.execute(_INSERT_ENTRY, entry).inserted_primary_key
    assert newest is not None
    connection.execute(_FORGET_ENTRIES, {"last_forgotten": newest.id - limits.HISTORY_ROWS_MAX})


def _note_outages(connection: Connection, now: datetime, notes: Sequence[tuple[NodeId, Note]]) -> None:
    due = _outages_untold(connection, notes)
    if not due:
        return
    known = lock_without_labels(connection, {node_id for node_id, _ in due})
    for node_id, note in _outages_untold(connection, due):  # Another frontend may have been faster.
        if node_id in known:
            _note(connection, now, known[node_id], note)


def _outages_untold(
    connection: Connection, notes: Sequence[tuple[NodeId, Note]]
) -> list[tuple[NodeId, Note]]:
    rows = connection.execute(_LAST_OUTAGES, {"noted": [node_id for node_id, _ in notes]})
    last = {row.node_id: row.event for row in rows}
    return [(node_id, note) for node_id, note in notes if last.get(node_id, ONLINE) != note.event]


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
