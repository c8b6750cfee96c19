"""Stored reports, read back with the number they were stored under."""

import structlog

from remuda.core.errors import Rejected
from remuda.fleet.model import Node
from remuda.fleet.model import Report as StoredReport
from remuda.wire.codec import decode
from remuda.wire.nodes import Report

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
        return read_report(stored)
    except Rejected as error:
        log.warning("report_not_read", node=node.name, reason=error.message)
        return None
