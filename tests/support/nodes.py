"""Builders with defaults: a test names only what it is about."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from remuda.core.ids import BootId, MachineId, NodeId
from remuda.fleet.admission import AdmissionPolicy as Policy
from remuda.fleet.admission import Beat, admit
from remuda.fleet.health import Thresholds
from remuda.fleet.identity import CallerIdentity, NodeTokens
from remuda.fleet.model import Candidate, Node, NodeType, Resources, StoredReport

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
THRESHOLDS = Thresholds(timedelta(seconds=30), timedelta(seconds=60))
OPEN = Policy(auto_approve=True)
CLOSED = Policy(auto_approve=False)
WITH_SHARED_TOKEN = CallerIdentity("127.0.0.1", shared=True)
TOKENS = NodeTokens("cluster", "shared")


def candidate(**changes: Any) -> Candidate:
    """A registration of our own worker; `version=""` makes it a LocalAI one."""
    return replace(
        Candidate(
            name="gpu-1",
            node_type=NodeType.BACKEND,
            address="127.0.0.1:50051",
            http_address="127.0.0.1:50050",
            machine_id=MachineId("machine-1"),
            boot_id=BootId("boot-1"),
            version="0.1.0",
            resources=Resources(total_ram=1 << 34, available_ram=1 << 33),
            source="127.0.0.1",
        ),
        **changes,
    )


def node(**changes: Any) -> Node:
    """An approved node that was heard at noon, and that has reported if it is one of ours."""
    made = replace(admit(candidate(), NOON, NodeId("node-1"), OPEN), **changes)
    if "report" in changes or not made.version:
        return made
    return replace(made, report=StoredReport(made.boot_id, 0, "{}"))


def beat(node_id: NodeId, **said: Any) -> Beat:
    """A heartbeat with the token that all workers share."""
    return Beat(node_id, WITH_SHARED_TOKEN, **said)
