"""The fleet as it was at one instant: a snapshot that carries its own `now`, and the verdicts on it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from remuda.core.ids import NodeId
from remuda.fleet.health import (
    NodeStatus,
    Reachability,
    Thresholds,
    judge,
    reasons,
    uncommandable,
    wire_status,
)
from remuda.fleet.liveness import ListeningPeriods
from remuda.fleet.model import CommandProbe, Dial, Node


@dataclass(frozen=True, slots=True)
class Standing:
    """A node and what is concluded about it."""

    node: Node
    reachability: Reachability
    status: NodeStatus
    silence: timedelta
    reasons: tuple[str, ...]
    unreached: Mapping[str, str] = field(default_factory=dict)  # Why, by each frontend that cannot dial it.
    uncommandable: str = ""  # Why commands cannot reach its worker; empty: they can, as far as is known.
    heard_ago: timedelta = timedelta()  # Whether or not a frontend listened meanwhile.
    stopped: str = ""  # Why its worker must have stopped, as any frontend found; empty: none did.

    @property
    def heartbeat_ago(self) -> timedelta:
        """Since it last told what runs there. A worker that is cut off from the bus is heard without that."""
        return self.heard_ago + (self.node.last_heard - self.node.last_heartbeat)


@dataclass(frozen=True, slots=True)
class Fleet:
    now: datetime
    listening: ListeningPeriods
    nodes: Sequence[Node]
    dials: Mapping[NodeId, Sequence[Dial]] = field(default_factory=dict)
    probes: Mapping[NodeId, Sequence[CommandProbe]] = field(default_factory=dict)

    def standing(self, node: Node, thresholds: Thresholds) -> Standing:
        silence = self.listening.silence(node.last_heard, self.now)
        # A worker that is not there has no subscription: probes tell something only while it is heard.
        probes = self.probes.get(node.id, ()) if silence < thresholds.unhealthy_after else ()
        cut_off = uncommandable(node, probes)
        reachability = judge(node, silence, thresholds, cut_off)
        why = reasons(node, reachability, silence, cut_off)
        unreached, stopped = dict[str, str](), ""
        if reachability in (Reachability.UP, Reachability.SILENT):
            unheard = silence >= thresholds.unhealthy_after
            dials = self.dials.get(node.id, ())
            ended = {dial.frontend for dial in dials if dial.problem and (unheard or dial.bus_closed)}
            unreached = {
                dial.frontend: _ended(node, dial) if dial.frontend in ended else _unreachable(node, dial)
                for dial in dials
                if dial.problem
            }
            stopped = _stopped(dials, ended, unreached)
            # A worker that has stopped comes first: it explains the rest.
            why = (*(unreached[frontend] for frontend in unreached if frontend in ended), *why)
        status = wire_status(node, reachability)
        return Standing(
            node,
            reachability,
            status,
            silence,
            tuple(dict.fromkeys((*why, *unreached.values()))),
            unreached,
            cut_off,
            self.now - node.last_heard,
            stopped,
        )

    def standings(self, thresholds: Thresholds) -> list[Standing]:
        return [self.standing(node, thresholds) for node in sorted(self.nodes, key=lambda n: n.name)]


def _stopped(dials: Sequence[Dial], ended: Collection[str], unreached: Mapping[str, str]) -> str:
    """What the frontend says that found its worker stopped; empty if another has reached it since."""
    found = [dial for dial in dials if dial.frontend in ended]
    answered = max((dial.checked_at for dial in dials if not dial.problem), default=None)
    if not found:
        return ""
    latest = max(found, key=lambda dial: (dial.checked_at, dial.frontend))
    return "" if answered is not None and answered > latest.checked_at else unreached[latest.frontend]


def _ended(node: Node, dial: Dial) -> str:
    """It has missed heartbeats as well, or left the bus: its port is not what is wrong."""
    return (
        "its worker has stopped, or its machine is off: start it again on that machine "
        f"({node.http_address}: {dial.problem})"
    )


def _unreachable(node: Node, dial: Dial) -> str:
    setting = node.setting("--advertise-http-addr", "LOCALAI_ADVERTISE_HTTP_ADDR")
    return (
        f"registered, but {node.http_address} cannot be reached from the frontend ({dial.problem}); "
        f"open that port there, or set {setting} on the worker"
    )
