"""Nodes as operations see them, with reports that are parsed once and not at every look."""

from collections.abc import Iterable, Mapping

from remuda.core.ids import NodeId
from remuda.fleet.fleet import Standing
from remuda.fleet.model import Node
from remuda.fleet.model import Report as StoredReport
from remuda.ops.ports import Inventory
from remuda.ops.reports import current_report, numbered
from remuda.ops.sightings import NodeView
from remuda.wire.nodes import Report


class NodeViews:
    def __init__(self) -> None:
        self._read: dict[NodeId, tuple[StoredReport, Report | None]] = {}

    def of(
        self, standings: Iterable[Standing], inventories: Iterable[Inventory]
    ) -> Mapping[NodeId, NodeView]:
        listed = {inventory.node: inventory for inventory in inventories}
        views: dict[NodeId, NodeView] = {}
        for standing in standings:
            node = standing.node
            reports = bool(node.version) or node.report is not None
            views[node.id] = NodeView(standing, reports, self._report(node), listed.get(node.id))
        self._read = {node: read for node, read in self._read.items() if node in views}
        return views

    def _report(self, node: Node) -> Report | None:
        stored = node.report
        if stored is None or stored.boot_id != node.boot_id:
            return None
        known = self._read.get(node.id)
        if known is None or known[0] != stored:
            known = self._read[node.id] = (stored, self._parsed(node, stored, known))
        return known[1]

    def _parsed(
        self, node: Node, stored: StoredReport, known: tuple[StoredReport, Report | None] | None
    ) -> Report | None:
        """Most reports repeat the one before under a new number: those are not parsed again."""
        if known is not None and known[1] is not None and known[0].body == stored.body:
            return numbered(known[1], stored)
        return current_report(node)
