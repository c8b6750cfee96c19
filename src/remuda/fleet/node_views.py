"""Nodes with their stored reports: read back with the number they were stored under,
and parsed once, not at every look."""

from collections.abc import Iterable, Mapping, Sequence

import structlog

from remuda.core.errors import Rejected
from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.fleet.identity import is_its_own
from remuda.fleet.model import Node, StoredReport
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.wire.codec import decode
from remuda.wire.nodes import Report, RunningReplica

log = structlog.get_logger(__name__)


def read_report(stored: StoredReport) -> Report:
    """Boot and sequence are columns of their own, and the body is stored without its sequence, so the
    columns are needed to tell one report from the next. Rejected when the body cannot be read."""
    return numbered(decode(Report, stored.body.encode()), stored)


def numbered(report: Report, stored: StoredReport) -> Report:
    return report.model_copy(update={"boot_id": stored.boot_id, "sequence": stored.sequence})


def current_report(node: Node) -> Report | None:
    """The report of its worker's present life; None when there is none, or none that can be read."""
    stored = node.report
    if stored is None or stored.boot_id != node.boot_id:
        return None
    try:
        report = read_report(stored)
    except Rejected as error:
        log.warning("report_not_read", node=node.name, reason=error.message)
        return None
    return _of_itself(report, node)


def _of_itself(report: Report, node: Node) -> Report:
    """Without addresses on hosts that are not the node's own."""
    foreign = [replica.address for replica in report.replicas if not _is_its_own(replica, node)]
    if not foreign:
        return report
    log.warning("report_names_other_hosts", node=node.name, addresses=foreign)
    kept = [
        replica if _is_its_own(replica, node) else replica.model_copy(update={"address": ""})
        for replica in report.replicas
    ]
    return report.model_copy(update={"replicas": tuple(kept)})


def _is_its_own(replica: RunningReplica, node: Node) -> bool:
    return is_its_own(replica.address, node, http=replica.protocol == "http")


class ObservedNodes:
    def __init__(self) -> None:
        self._read: dict[NodeId, tuple[StoredReport, Report | None]] = {}

    def of(
        self, standings: Iterable[Standing], inventories: Iterable[BackendInventory]
    ) -> Mapping[NodeId, ObservedNode]:
        listed = {inventory.node: inventory for inventory in inventories}
        views: dict[NodeId, ObservedNode] = {}
        for standing in standings:
            node = standing.node
            reports = bool(node.version) or node.report is not None
            views[node.id] = ObservedNode(standing, reports, self._report(node), listed.get(node.id))
        self._read = {node: read for node, read in list(self._read.items()) if node in views}
        return views

    def reports(self, standings: Sequence[Standing]) -> Mapping[NodeId, Report | None]:
        """Of all nodes, those of their workers' present lives."""
        return {node: view.report for node, view in self.of(standings, ()).items()}

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
