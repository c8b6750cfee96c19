"""What a node can be used for now, and what is installed on it, with the reasons. Pure.

The one home of these rules: operations, the scheduler and the router ask here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from remuda.core.hints import pasted
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import NodeStatus, Reachability, Standing
from remuda.fleet.model import Node, NodeType
from remuda.wire.nodes import InstalledArtifact, Report

_COUNTED: Final = (NodeStatus.HEALTHY, NodeStatus.UNHEALTHY)
_REPORT_UNDER_WAY: Final = timedelta(seconds=5)  # What it says may be older than its arrival by so much.


@dataclass(frozen=True, slots=True)
class BackendInventory:
    """What a worker without reports answered when it was asked what it has."""

    node: NodeId
    boot: BootId
    listed_at: datetime
    backends: tuple[InstalledArtifact, ...]


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """One node with what it has reported. `report` is that of its present life, or None."""

    standing: Standing
    reports: bool
    report: Report | None
    inventory: BackendInventory | None

    @property
    def boot(self) -> BootId:
        return self.standing.node.boot_id


def is_localai(node: Node) -> bool:
    """Its worker is LocalAI's: it sends no reports and knows nothing of ours."""
    return not node.version and node.report is None


# What it has.


def installed(view: ObservedNode, since: datetime | None = None) -> Sequence[InstalledArtifact] | None:
    """What it has, as far as its present life has reported; None when it has not, or not after `since`."""
    if view.reports:
        told_at = view.standing.node.last_heartbeat - _REPORT_UNDER_WAY
        backends = None if view.report is None else view.report.installed
    else:
        listed = view.inventory
        if listed is None or listed.boot != view.boot:
            return None
        told_at, backends = listed.listed_at, listed.backends
    return None if since is not None and told_at <= since else backends


def is_counted(view: ObservedNode) -> bool:
    """What it has is part of the picture: it was let in, and is neither away for long nor about to leave."""
    standing = view.standing
    return standing.node.node_type is NodeType.BACKEND and standing.status in _COUNTED


# What it can be used for.


def is_up(standing: Standing) -> bool:
    """It is heard, and commands reach it."""
    return standing.reachability is Reachability.UP


def why_no_target(standing: Standing) -> str:
    """Why no operation is ever meant for it; empty when one can be, now or later."""
    node = standing.node
    if node.node_type is not NodeType.BACKEND:
        return f"{node.name} is an agent node, which runs no backends"
    if not node.approved:
        return f"{node.name} waits for approval: remuda nodes approve {pasted(node.name)}"
    return ""


def why_no_commands(standing: Standing) -> str:
    """Why what an operation wants of it has to wait; empty when it can be asked for now."""
    if standing.status is NodeStatus.DRAINING:
        return "it is draining; continues when it is resumed"
    return _why_unreached(standing)


def why_no_removal(standing: Standing) -> str:
    """Why files of a model that was removed are not removed there now; empty when they can be. A drained node
    takes no new work, which this is not."""
    if standing.node.leaving and standing.status is NodeStatus.DRAINING:
        return "its worker is shutting down; continues when it returns"
    return _why_unreached(standing)


def _why_unreached(standing: Standing) -> str:
    if not standing.node.approved:
        return "it is waiting for approval"
    if is_up(standing):
        return ""
    # The first of the reasons may be that it is drained, which is not why it is not reached.
    why = standing.reasons[-1] if standing.reasons else "no heartbeat"
    return f"{why}; continues when it returns"


def why_no_replicas(standing: Standing) -> str:
    """Why it takes no new replicas now, with what would change that; empty when it does."""
    if standing.node.node_type is not NodeType.BACKEND:
        return "it is an agent node, which runs no backends; a worker on that machine would: remuda join"
    return "" if may_take_work(standing.node) and is_up(standing) else standing.reasons[0]


def why_no_vram(view: ObservedNode) -> str:
    """Why nothing is loaded into its GPUs now, and idle models leave them; empty when that is not so."""
    return "" if view.report is None else view.report.gpu_claimed


def takes_requests(standing: Standing) -> bool:
    """Whether the replicas it has are used, though it may have missed a heartbeat."""
    reachable = standing.reachability in (Reachability.UP, Reachability.SILENT)
    return reachable and may_take_work(standing.node)


def may_take_work(node: Node) -> bool:
    """It was let in, is not drained, and its worker is not shutting down. It may be silent."""
    return node.approved and not node.drained and not node.leaving
