"""The fleet as rows: nodes, read, locked and written together with their labels; and the times in which
frontends listened, one row per frontend and unbroken stretch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)

from remuda.core import limits
from remuda.core.errors import NotFound
from remuda.core.ids import BootId, FrontendId, MachineId, NodeId
from remuda.fleet.health import ListeningPeriod, ListeningPeriods
from remuda.fleet.model import (
    BusTroubleKind,
    Label,
    LabelSource,
    Node,
    NodeType,
    Resources,
    StoredBusTrouble,
    StoredReport,
)
from remuda.fleet.registration import Pending
from remuda.store.schema import ColumnValues, command_probes, hearing_spans, node_dials, node_labels, nodes

StoredLabels = Mapping[str, Label]
NodeTableRow = Row[tuple[object]]

# Built once: with this many columns, building a statement costs more than running it.
_NODES = select(nodes)
_LABELS = select(node_labels.c.node_id, node_labels.c.key, node_labels.c.value, node_labels.c.source)
_PENDING = select(nodes.c.id, nodes.c.source, nodes.c.last_heartbeat).where(nodes.c.approved.is_(False))
_NAMES = select(nodes.c.name)
_INSERT = insert(nodes)
_DELETE = delete(nodes).where(nodes.c.id.in_(bindparam("ids", expanding=True)))
_UPDATE = update(nodes).where(nodes.c.id == bindparam("row_id"))
_DELETE_LABELS = delete(node_labels).where(
    node_labels.c.node_id == bindparam("node"), node_labels.c.key.in_(bindparam("keys", expanding=True))
)
_INSERT_LABELS = insert(node_labels)


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Some of the nodes, by values that are given when they are read."""

    rows: Select[Any]
    locked: Select[Any]
    labels: Select[Any]

    @classmethod
    def meet(cls, condition: ColumnElement[bool]) -> "NodeQuery":
        these = select(nodes.c.id).where(condition)
        rows = _NODES.where(condition)
        # Not the strongest lock: labels, dials and history may refer to the row meanwhile.
        locked = rows.order_by(nodes.c.id).with_for_update(key_share=True)
        return cls(rows, locked, _LABELS.where(node_labels.c.node_id.in_(these)))


BY_ID: Final = NodeQuery.meet(nodes.c.id == bindparam("node"))
BY_NAME: Final = NodeQuery.meet(nodes.c.name == bindparam("node_name"))
CLAIMED: Final = NodeQuery.meet(nodes.c.claim.is_not(None))
_AMONG: Final = NodeQuery.meet(nodes.c.id.in_(bindparam("ids", expanding=True)))


class KnownNodes:
    """All nodes, time and again. Building one costs more than seeing that its row is as it was."""

    def __init__(self) -> None:
        self._known: dict[
            str, tuple[NodeTableRow, StoredLabels, Node]
        ] = {}  # Replaced as a whole: threads read at once.

    def read(self, connection: Connection) -> list[Node]:
        before, now = self._known, {}
        labels = _labels(connection, _LABELS)
        for row in connection.execute(_NODES).all():
            known, own = before.get(row.id), labels.get(row.id, {})
            if known is None or known[0] != row or known[1] != own:
                known = (row, own, _node(row, own))
            now[row.id] = known
        self._known = now
        return [node for _, _, node in now.values()]


def read_nodes(
    connection: Connection, which: NodeQuery, values: ColumnValues, *, lock: bool = False
) -> list[Node]:
    """The nodes of these values; with `lock` they stay as read until the transaction ends."""
    rows = connection.execute(which.locked if lock else which.rows, values).all()
    labels = _labels(connection, which.labels, values)
    return [_node(row, labels.get(row.id, {})) for row in rows]


def _labels(
    connection: Connection, wanted: Select[Any], values: ColumnValues | None = None
) -> Mapping[str, StoredLabels]:
    labels: defaultdict[str, dict[str, Label]] = defaultdict(dict)
    for node_id, key, value, source in connection.execute(wanted, values).all():
        labels[node_id][key] = _label(value, source)
    return labels


def lock_node(connection: Connection, node_id: NodeId) -> Node:
    found = read_nodes(connection, BY_ID, {"node": node_id}, lock=True)
    if not found:
        raise unknown_node(node_id)
    return found[0]


def unknown_node(node_id: NodeId) -> NotFound:
    return NotFound(f"there is no node with the id {node_id}", hint="list the nodes to see their ids")


def lock_without_labels(connection: Connection, ids: Iterable[NodeId]) -> dict[NodeId, Node]:
    """Those of the nodes that exist, their labels left out. Always locked in one order, so that two
    frontends with the same nodes in hand wait for each other once, not each for the other."""
    rows = connection.execute(_AMONG.locked, {"ids": list(ids)})
    return {NodeId(row.id): _node(row, {}) for row in rows}


def read_pending(connection: Connection) -> list[Pending]:
    return [Pending(NodeId(row.id), row.source, row.last_heartbeat) for row in connection.execute(_PENDING)]


def read_names(connection: Connection) -> list[str]:
    return list(connection.scalars(_NAMES))


def delete_nodes(connection: Connection, ids: Iterable[NodeId]) -> None:
    connection.execute(_DELETE, {"ids": list(ids)})


def insert_node(connection: Connection, node: Node) -> None:
    connection.execute(_INSERT, _columns(node))
    _replace_labels(connection, node.id, {}, node.labels)


def update_node(connection: Connection, known: Node, node: Node) -> None:
    """Turn the `known` row, which must be locked, into `node`."""
    assert known.id == node.id, "a node keeps its id for the life of its row"
    connection.execute(_UPDATE, {"row_id": node.id, **_columns(node)})
    _replace_labels(connection, node.id, known.labels, node.labels)


def update_heard(connection: Connection, beaten: Iterable[Node]) -> None:
    """Write only what a heartbeat can change."""
    changes = [{"row_id": node.id, **_heard_columns(node)} for node in beaten]
    if changes:
        connection.execute(_UPDATE, changes)


def _replace_labels(connection: Connection, node_id: NodeId, old: StoredLabels, new: StoredLabels) -> None:
    stale = [key for key, label in old.items() if new.get(key) != label]
    fresh = [
        {"node_id": node_id, "key": key, "value": label.value, "source": label.source}
        for key, label in new.items()
        if old.get(key) != label
    ]
    if stale:
        connection.execute(_DELETE_LABELS, {"node": node_id, "keys": stale})
    if fresh:
        connection.execute(_INSERT_LABELS, fresh)


def _columns(node: Node) -> ColumnValues:
    return {
        "id": node.id,
        "name": node.name,
        "node_type": node.node_type,
        "address": node.address,
        "http_address": node.http_address,
        "machine_id": node.machine_id,
        "boot_id": node.boot_id,
        "version": node.version,
        "vram_budget": node.vram_budget,
        "vram_budget_override": node.vram_budget_override,
        "files_budget_override": node.files_budget_override,
        "max_replicas": node.max_replicas,
        "max_replicas_override": node.max_replicas_override,
        "approved": node.approved,
        "drained": node.drained,
        "leaving": node.leaving,
        "created_at": node.created_at,
        **_bus_trouble_columns(node.bus_trouble),
        "registered_at": node.registered_at,
        "registration_hash": node.registration_hash,
        "secret_hash": node.secret_hash,
        "invite": node.invite,
        "contested_from": node.contested_from,
        "claim": node.claim,
        **_heard_columns(node),
    }


def _bus_trouble_columns(trouble: StoredBusTrouble | None) -> ColumnValues:
    return {
        "bus_trouble_boot_id": None if trouble is None else trouble.boot_id,
        "bus_trouble_sequence": None if trouble is None else trouble.sequence,
        "bus_trouble": None if trouble is None else trouble.reason,
        "bus_trouble_heard_at": None if trouble is None else trouble.heard_at,
        "bus_trouble_code": "" if trouble is None else trouble.kind.value,
    }


def _heard_columns(node: Node) -> ColumnValues:
    report = node.report
    return {
        "departed": node.departed,
        "left_fleet": node.left,
        "ended": node.ended,
        "source": node.source,
        "last_heartbeat": node.last_heartbeat,
        "updated_at": node.updated_at,
        "report_boot_id": None if report is None else report.boot_id,
        "report_sequence": None if report is None else report.sequence,
        "report_body": None if report is None else report.body,
        **asdict(node.resources),
    }


@lru_cache(maxsize=4096)  # A fleet has few different labels, and a snapshot is read often.
def _label(value: str, source: str) -> Label:
    return Label(value, LabelSource(source))


def _node(row: Row[tuple[object]], labels: StoredLabels) -> Node:
    return Node(
        id=NodeId(row.id),
        name=row.name,
        node_type=NodeType(row.node_type),
        address=row.address,
        http_address=row.http_address,
        machine_id=MachineId(row.machine_id),
        boot_id=BootId(row.boot_id),
        version=row.version,
        resources=_resources(row),
        vram_budget=row.vram_budget,
        vram_budget_override=row.vram_budget_override,
        files_budget_override=row.files_budget_override,
        max_replicas=row.max_replicas,
        max_replicas_override=row.max_replicas_override,
        approved=row.approved,
        drained=row.drained,
        leaving=row.leaving,
        departed=row.departed,
        last_heartbeat=row.last_heartbeat,
        created_at=row.created_at,
        updated_at=row.updated_at,
        labels=labels,
        report=_report(row),
        bus_trouble=_bus_trouble(row),
        registered_at=row.registered_at,
        registration_hash=row.registration_hash,
        source=row.source,
        secret_hash=row.secret_hash,
        invite=row.invite,
        claim=row.claim,
        contested_from=row.contested_from,
        left=row.left_fleet,
        ended=row.ended,
    )


def _resources(row: Row[tuple[object]]) -> Resources:
    return Resources(
        total_vram=row.total_vram,
        available_vram=row.available_vram,
        total_ram=row.total_ram,
        available_ram=row.available_ram,
        total_disk=row.total_disk,
        available_disk=row.available_disk,
        gpu_vendor=row.gpu_vendor,
        gpu_compute_capability=row.gpu_compute_capability,
        capability=row.capability,
    )


def _bus_trouble(row: Row[tuple[object]]) -> StoredBusTrouble | None:
    if row.bus_trouble_boot_id is None:
        return None
    return StoredBusTrouble(
        BootId(row.bus_trouble_boot_id),
        row.bus_trouble_sequence,
        row.bus_trouble,
        row.bus_trouble_heard_at,
        BusTroubleKind.stored(row.bus_trouble_code),
    )


def _report(row: Row[tuple[object]]) -> StoredReport | None:
    if row.report_boot_id is None:
        return None
    return StoredReport(BootId(row.report_boot_id), row.report_sequence, row.report_body)


_GAP_MAX = timedelta(seconds=limits.LIVENESS_GAP_MAX_S)
_LATELY = timedelta(seconds=limits.LISTENING_LATELY_S)
_AHEAD_MAX = timedelta(seconds=limits.LIVENESS_AHEAD_MAX_S)
_WELL_BEFORE = timedelta(hours=1)  # More than the time between that change and the next proof of hearing.

# Built once: these run again and again.
_SPANS = select(hearing_spans.c.since, hearing_spans.c.until)
_LATEST = select(func.max(hearing_spans.c.until))
_NEWEST = (
    select(hearing_spans.c.id, hearing_spans.c.until)
    .where(hearing_spans.c.frontend == bindparam("listener"))
    .order_by(hearing_spans.c.id.desc())
    .limit(1)
)
_BEGIN = insert(hearing_spans)
_EXTEND = update(hearing_spans).where(hearing_spans.c.id == bindparam("span"))
_UNBROKEN = select(hearing_spans.c.frontend).where(hearing_spans.c.until >= bindparam("unbroken_since"))
_LISTENING = select(hearing_spans.c.frontend).where(hearing_spans.c.until >= bindparam("lately_since"))


def listened_lately(table: Table) -> ColumnElement[bool]:
    """Rows written by frontends that are still there, by the values of `lately`."""
    return table.c.frontend.in_(_LISTENING)


_FORGET_CALLS: Final = tuple(
    delete(table).where(~listened_lately(table)) for table in (node_dials, command_probes)
)


def read_listening(connection: Connection) -> ListeningPeriods:
    spans = connection.execute(_SPANS)
    return ListeningPeriods.of(ListeningPeriod(span.since, span.until) for span in spans)


def listen(connection: Connection, now: datetime, frontend: FrontendId, *, resumed: bool) -> None:
    """Extend the frontend's span to now, or begin a new one where it cannot have heard everything."""
    _follow_clock(connection, now)
    newest = connection.execute(_NEWEST, {"listener": frontend}).one_or_none()
    if newest is None or resumed or now - newest.until > _GAP_MAX:
        connection.execute(_BEGIN, {"frontend": frontend, "since": now, "until": now})
        _forget_old(connection, now)
    else:
        until = max(now, newest.until)
        connection.execute(_EXTEND, {"span": newest.id, "until": until})


def _follow_clock(connection: Connection, now: datetime) -> None:
    """Where the clock was set back, what was heard would lie in the future, and no node's silence could be
    told until the clock has caught up. Move it into the past, and so far that it ends before whatever was
    heard since: no frontend was listening then."""
    latest = connection.scalar(_LATEST)
    if latest is None or latest - now <= _AHEAD_MAX:
        return
    back = (latest - now + _WELL_BEFORE) // timedelta(microseconds=1)
    spans = hearing_spans.c
    connection.execute(
        update(hearing_spans).values(
            since=type_coerce(spans.since, BigInteger) - back,
            until=type_coerce(spans.until, BigInteger) - back,
        )
    )
    # A node that was heard since then is left as it is.
    for column in (nodes.c.last_heartbeat, nodes.c.bus_trouble_heard_at):
        moved = {column.name: type_coerce(column, BigInteger) - back}
        connection.execute(update(nodes).where(column > now).values(moved))


def listeners(connection: Connection, now: datetime) -> frozenset[FrontendId]:
    """The frontends whose span has not ended."""
    unbroken = connection.scalars(_UNBROKEN, {"unbroken_since": now - _GAP_MAX})
    return frozenset(FrontendId(frontend) for frontend in unbroken)


def lately(now: datetime) -> Mapping[str, datetime]:
    return {"lately_since": now - _LATELY}


def _forget_old(connection: Connection, now: datetime) -> None:
    """Keep the newest spans. One that never grew goes first: it says nothing, and a frontend that resumes
    over and over would otherwise crowd out the spans by which silence is measured."""
    spans = hearing_spans.c
    never_grew = and_(spans.since == spans.until, spans.until < now - _GAP_MAX)
    newest = select(spans.id).order_by(spans.until.desc(), spans.id.desc()).limit(limits.LIVENESS_SPANS_MAX)
    connection.execute(delete(hearing_spans).where(or_(never_grew, spans.id.not_in(newest))))
    for forget in _FORGET_CALLS:
        connection.execute(forget, lately(now))
