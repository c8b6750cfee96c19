"""The fleet as it was at one instant: a snapshot that carries its own `now`, and the verdicts on it."""

from collections.abc import Iterable, Mapping, Sequence
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
from remuda.fleet.model import BUS_CLOSED_TOO, CommandProbe, Dial, Node


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
    heard_ago: timedelta = timedelta()  # Whether or not anybody listened meanwhile.
    stopped: str = ""  # Why its worker must have stopped, as any frontend found; empty: nobody found that.

    @property
    def heartbeat_ago(self) -> timedelta:
        """Since it last told what runs there. A worker that is cut off from the bus is heard without that."""
        return self.heard_ago + (self.node.last_heard - self.node.last_heartbeat)


@dataclass(frozen=True, slots=True)
class Fleet:
    now: datetime
    hearing: ListeningPeriods
    nodes: Sequence[Node]
    dials: Mapping[NodeId, Sequence[Dial]] = field(default_factory=dict)
    probes: Mapping[NodeId, Sequence[CommandProbe]] = field(default_factory=dict)

    def standing(self, node: Node, thresholds: Thresholds) -> Standing:
        silence = self.hearing.silence(node.last_heard, self.now)
        # Nobody listens for a worker that is not there: probes tell something only while it is heard.
        probes = self.probes.get(node.id, ()) if silence < thresholds.unhealthy_after else ()
        cut_off = uncommandable(node, probes)
        reachability = judge(node, silence, thresholds, cut_off)
        why = reasons(node, reachability, silence, cut_off)
        unreached, stopped = dict[str, str](), ""
        if reachability in (Reachability.UP, Reachability.SILENT):
            unheard = silence >= thresholds.unhealthy_after
            dials = self.dials.get(node.id, ())
            failed = [dial for dial in dials if dial.problem]
            unreached = {dial.frontend: _unreachable(node, dial, unheard=unheard) for dial in failed}
            stopped = _stopped(dials, unreached)
        status = wire_status(node, reachability)
        return Standing(
            node,
            reachability,
            status,
            silence,
            _in_order(why, unreached.values()),
            unreached,
            cut_off,
            self.now - node.last_heard,
            stopped,
        )

    def standings(self, thresholds: Thresholds) -> list[Standing]:
        return [self.standing(node, thresholds) for node in sorted(self.nodes, key=lambda n: n.name)]


_STOPPED = "its worker has stopped"


def _in_order(why: Iterable[str], unreached: Iterable[str]) -> tuple[str, ...]:
    """A worker that has stopped comes first: it explains the rest."""
    return tuple(sorted(dict.fromkeys((*why, *unreached)), key=lambda one: not one.startswith(_STOPPED)))


def _stopped(dials: Sequence[Dial], unreached: Mapping[str, str]) -> str:
    """What the frontend says that found its worker stopped; empty if another has reached it since."""
    found = [dial for dial in dials if unreached.get(dial.frontend, "").startswith(_STOPPED)]
    answered = max((dial.checked_at for dial in dials if not dial.problem), default=None)
    if not found:
        return ""
    latest = max(found, key=lambda dial: (dial.checked_at, dial.frontend))
    return "" if answered is not None and answered > latest.checked_at else unreached[latest.frontend]


def _unreachable(node: Node, dial: Dial, *, unheard: bool) -> str:
    """`unheard`: it has missed heartbeats as well, so its port is not what is wrong."""
    if unheard or BUS_CLOSED_TOO in dial.problem:
        return (
            f"{_STOPPED}, or its machine is off: start it again on that machine "
            f"({node.http_address}: {dial.problem})"
        )
    setting = node.setting("--advertise-http-addr", "LOCALAI_ADVERTISE_HTTP_ADDR")
    return (
        f"registered, but {node.http_address} cannot be reached from the frontend ({dial.problem}); "
        f"open that port there, or set {setting} on the worker"
    )
