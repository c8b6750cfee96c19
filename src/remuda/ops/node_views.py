"""Nodes as operations see them, with reports that are read once and not at every look."""

from collections.abc import Iterable, Mapping

import structlog

from remuda.core.errors import Rejected
from remuda.core.ids import BootId, NodeId
from remuda.fleet.fleet import Standing
from remuda.fleet.model import Node
from remuda.ops.ports import Inventory
from remuda.ops.sightings import NodeView
from remuda.wire.codec import decode
from remuda.wire.nodes import Report

log = structlog.get_logger(__name__)

_Fence = tuple[BootId, int]


class NodeViews:
    def __init__(self) -> None:
        self._read: dict[NodeId, tuple[_Fence, Report | None]] = {}

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
        if node.report is None or node.report.boot_id != node.boot_id:
            return None
        fence = (node.report.boot_id, node.report.sequence)
        known = self._read.get(node.id)
        if known is None or known[0] != fence:
            known = self._read[node.id] = (fence, _decoded(node))
        return known[1]


def _decoded(node: Node) -> Report | None:
    assert node.report is not None, "the caller has looked"
    try:
        return decode(Report, node.report.body.encode())
    except Rejected as error:
        log.warning("report_not_read", node=node.name, reason=error.message)
        return None
