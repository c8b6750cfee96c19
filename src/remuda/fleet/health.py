"""A node's health: reachability, wire status and the reasons, from the stored facts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from remuda.core.shell_quoting import pasted
from remuda.fleet.model import BusTroubleKind, CommandProbe, Node


class Reachability(StrEnum):
    UP = "up"
    SILENT = "silent"  # Missed some heartbeats, or cannot be commanded: prefer others, conclude nothing.
    GONE = "gone"  # Missed so many that its replicas are not counted on.
    DEPARTED = "departed"  # Said goodbye.


class NodeStatus(StrEnum):
    """The five words of the wire. None of them is stored."""

    PENDING = "pending"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Thresholds:
    unhealthy_after: timedelta
    offline_after: timedelta


def uncommandable(node: Node, probes: Sequence[CommandProbe] = ()) -> str:
    """Why commands cannot reach the node's worker; empty when they can, as far as is known.

    `probes` are those of the frontends that are there now. Where one of them is answered, the others have
    trouble of their own. A node that waits for approval has no credentials for the bus yet.
    """
    if not node.approved:
        return ""
    if node.cut_off and node.bus_trouble is not None:
        connects_not = node.bus_trouble.kind is BusTroubleKind.CANNOT_CONNECT
        return f"its worker {'' if connects_not else 'is not connected to the bus: '}{node.cut_off}"
    if probes and all(probe.problem for probe in probes):
        return probes[0].problem
    return ""


def judge(node: Node, silence: timedelta, thresholds: Thresholds, uncommandable: str = "") -> Reachability:
    """How well the node is heard, given how long it was silent while someone listened."""
    if node.departed:
        return Reachability.DEPARTED
    if silence >= thresholds.offline_after:
        return Reachability.GONE
    if silence >= thresholds.unhealthy_after or uncommandable or _connecting(node):
        return Reachability.SILENT
    return Reachability.UP


def wire_status(node: Node, reachability: Reachability) -> NodeStatus:
    """The one word peers know. Approval comes first, so that no silence and no return can skip it."""
    if not node.approved:
        return NodeStatus.PENDING
    if reachability in (Reachability.GONE, Reachability.DEPARTED):
        return NodeStatus.OFFLINE
    if node.drained or node.leaving:
        return NodeStatus.DRAINING
    if reachability is Reachability.SILENT:
        return NodeStatus.UNHEALTHY
    return NodeStatus.HEALTHY


_START_AGAIN = {
    True: "start it again there with: remuda worker",
    False: "restart LocalAI's worker there",
}


def reasons(
    node: Node, reachability: Reachability, silence: timedelta, uncommandable: str = ""
) -> tuple[str, ...]:
    """Why the node takes no work, in words that say what would change it; empty when it does."""
    found: list[str] = []
    if not node.approved:
        found.append(f"waiting for approval: remuda nodes approve {pasted(node.name)}")
    if node.drained:
        found.append(f"drained by an admin: remuda nodes resume {pasted(node.name)}")
    if node.claim is not None:
        found.append(
            f"another machine, at {node.claim.registration.source or 'an unknown address'}, wants to take "
            f"over its name: remuda nodes approve {pasted(node.name)}"
        )
    if node.leaving and reachability is not Reachability.DEPARTED:
        found.append("its worker is shutting down")
    # What the worker of a node that is gone said of the bus is old, and not why it is gone.
    if uncommandable and reachability not in (Reachability.GONE, Reachability.DEPARTED):
        found.append(uncommandable)
    return (*found, *_heard(node, reachability, silence, uncommandable))


def _heard(node: Node, reachability: Reachability, silence: timedelta, uncommandable: str) -> tuple[str, ...]:
    """What is to be said of how well it is heard."""
    seconds = int(silence.total_seconds())
    match reachability:
        case Reachability.DEPARTED:
            return (_departed(node),)
        case Reachability.GONE:
            return (f"no heartbeat for {seconds} s; check its power, its network and its worker's log",)
        case Reachability.SILENT if _connecting(node) and not uncommandable:
            return ("its worker is connecting to the bus",)
        case Reachability.SILENT if not uncommandable:
            return (f"no heartbeat for {seconds} s; waiting for its next heartbeat",)
        case Reachability.UP | Reachability.SILENT:
            return ()


def _connecting(node: Node) -> bool:
    """Its worker has credentials for the bus, and has not connected yet."""
    return node.approved and node.connecting


def _departed(node: Node) -> str:
    if node.ended:
        return node.ended
    if node.left:
        return f"left the fleet; remove it with: remuda nodes remove {pasted(node.name)}"
    return f"its worker was stopped; {_START_AGAIN[bool(node.version)]}"
