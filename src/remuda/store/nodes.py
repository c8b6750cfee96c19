"""Nodes as rows: reading, locking and writing them together with their labels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, delete, insert, select, update

from remuda.core.errors import NotFound
from remuda.core.ids import BootId, MachineId, NodeId
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
from remuda.store.schema import node_labels, nodes

Labels = Mapping[str, Label]
Values = Mapping[str, object]
Found = Row[tuple[object]]

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
        self._known: dict[str, tuple[Found, Labels, Node]] = {}  # Replaced as a whole: threads read at once.

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


def read_nodes(connection: Connection, which: NodeQuery, values: Values, *, lock: bool = False) -> list[Node]:
    """The nodes of these values; with `lock` they stay as read until the transaction ends."""
    rows = connection.execute(which.locked if lock else which.rows, values).all()
    labels = _labels(connection, which.labels, values)
    return [_node(row, labels.get(row.id, {})) for row in rows]


def _labels(
    connection: Connection, wanted: Select[Any], values: Values | None = None
) -> Mapping[str, Labels]:
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


def update_heard(connection: Connection, heard: Iterable[Node]) -> None:
    """Write only what a heartbeat can change."""
    changes = [{"row_id": node.id, **_heard_columns(node)} for node in heard]
    if changes:
        connection.execute(_UPDATE, changes)


def _replace_labels(connection: Connection, node_id: NodeId, old: Labels, new: Labels) -> None:
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


def _columns(node: Node) -> Values:
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


def _bus_trouble_columns(trouble: StoredBusTrouble | None) -> Values:
    return {
        "bus_trouble_boot_id": None if trouble is None else trouble.boot_id,
        "bus_trouble_sequence": None if trouble is None else trouble.sequence,
        "bus_trouble": None if trouble is None else trouble.reason,
        "bus_trouble_heard_at": None if trouble is None else trouble.heard_at,
        "bus_trouble_code": "" if trouble is None else trouble.kind.value,
    }


def _heard_columns(node: Node) -> Values:
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


def _node(row: Row[tuple[object]], labels: Labels) -> Node:
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
