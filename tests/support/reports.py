"""Reports as the store has them: whatever a test's worker says comes in by the way that heartbeats take."""

from remuda.core.ids import NodeId
from remuda.fleet.identity import CallerIdentity
from remuda.fleet.model import StoredReport
from remuda.gateway import node_views
from remuda.wire.codec import decode, encode
from remuda.wire.nodes import Heartbeat, Report

_ANY = NodeId("any")


def stored(report: Report) -> StoredReport:
    sent = decode(Heartbeat, encode(Heartbeat(report=report)))
    taken_in = node_views.beat(_ANY, CallerIdentity(), sent).report
    assert taken_in is not None, "it was sent"
    return taken_in
