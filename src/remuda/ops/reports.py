"""Stored reports, read back with the number they were stored under."""

import structlog

from remuda.core.errors import Rejected
from remuda.fleet.identity import is_its_own
from remuda.fleet.model import Node
from remuda.fleet.model import Report as StoredReport
from remuda.wire.codec import decode
from remuda.wire.nodes import Report, RunningReplica

log = structlog.get_logger(__name__)


def read_report(stored: StoredReport) -> Report:
    """Boot and sequence are columns of their own, and the body is stored without its sequence: whoever tells
    one report from the next must see the columns. Rejected when the body cannot be read."""
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
    foreign = [told.address for told in report.replicas if not _is_its_own(told, node)]
    if not foreign:
        return report
    log.warning("report_names_other_hosts", node=node.name, addresses=foreign)
    kept = [
        told if _is_its_own(told, node) else told.model_copy(update={"address": ""})
        for told in report.replicas
    ]
    return report.model_copy(update={"replicas": tuple(kept)})


def _is_its_own(told: RunningReplica, node: Node) -> bool:
    return is_its_own(told.address, node, http=told.protocol == "http")
