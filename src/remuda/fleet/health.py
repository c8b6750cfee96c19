"""How nodes are: how long each has been silent, its health (reachability, wire status and the reasons) from
the stored facts, and the fleet as it was at one instant, a snapshot that carries its own `now`. Pure.

Only time in which some frontend could have heard a node counts as its silence: while store or bus are down,
or no frontend runs, no node's silence grows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from remuda.core.hints import pasted
from remuda.core.ids import NodeId
from remuda.fleet.model import BusTroubleKind, CommandProbe, Dial, Node


@dataclass(frozen=True, slots=True, order=True)
class ListeningPeriod:
    """One frontend heard the fleet from `since` until `until`, without a gap."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class ListeningPeriods:
    """The times at which at least one frontend was listening, merged and in order."""

    spans: tuple[ListeningPeriod, ...] = ()

    @staticmethod
    def of(spans: Iterable[ListeningPeriod]) -> "ListeningPeriods":
        merged: list[ListeningPeriod] = []
        for span in sorted(spans):
            if merged and span.since <= merged[-1].until:
                merged[-1] = ListeningPeriod(merged[-1].since, max(merged[-1].until, span.until))
            else:
                merged.append(span)
        return ListeningPeriods(tuple(merged))

    def silence(self, last_heard: datetime, now: datetime) -> timedelta:
        """Time spent listening since `last_heard`. Where the clock was set back, spans may reach beyond
        `now`: what lies there was before, and says nothing about a heartbeat that came since."""
        total = timedelta()
        for span in reversed(self.spans):
            if span.until <= last_heard:
                break
            overlap = min(span.until, now) - max(span.since, last_heard)
            total += max(overlap, timedelta())
        return total


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
    True: "start it again there with: remuda worker (with remuda up, where that had started it)",
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
    silent = _span(silence)
    match reachability:
        case Reachability.DEPARTED:
            return (_departed(node),)
        case Reachability.GONE:
            return (f"no heartbeat for {silent}; check its power, its network and its worker's log",)
        case Reachability.SILENT if _connecting(node) and not uncommandable:
            return ("its worker is connecting to the bus",)
        case Reachability.SILENT if not uncommandable:
            return (f"no heartbeat for {silent}; waiting for its next heartbeat",)
        case Reachability.UP | Reachability.SILENT:
            return ()


def _span(silence: timedelta) -> str:
    """Coarser the longer it is: consoles are sent each reason anew when its words change."""
    seconds = int(silence.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _connecting(node: Node) -> bool:
    """Its worker has credentials for the bus, and has not connected yet."""
    return node.approved and node.connecting


JOINING: Final = timedelta(seconds=60)
"""A worker that waits for approval asks for it anew after at most half of this, and connects in the other."""


def joining(node: Node, reachability: Reachability, now: datetime, uncommandable: str = "") -> bool:
    """Whether it is not ready only because its worker has begun to connect a moment ago."""
    return (
        reachability is Reachability.SILENT
        and _connecting(node)
        and not uncommandable
        and not node.drained
        and not node.leaving
        and node.registered_at is not None
        and now - node.registered_at < JOINING
    )


def _departed(node: Node) -> str:
    if node.ended:
        return node.ended
    if node.left:
        return f"left the fleet; remove it with: remuda nodes remove {pasted(node.name)}"
    return f"its worker was stopped; {_START_AGAIN[bool(node.version)]}"


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
    joining: bool = False  # It is only not ready yet.

    @property
    def heartbeat_ago(self) -> timedelta:
        """Since it last reported what runs there. One that is cut off from the bus is heard without that."""
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
            failed = [dial for dial in dials if dial.problem and dial.checked_at >= node.last_heard]
            ended = {dial.frontend for dial in failed if unheard or dial.bus_closed}
            unreached = {
                dial.frontend: _ended(node, dial) if dial.frontend in ended else _unreachable(node, dial)
                for dial in dials
                if dial.problem
            }
            stopped = _stopped(dials, ended, unreached)
            # A worker that has stopped comes first: it explains the rest.
            why = (*(unreached[frontend] for frontend in unreached if frontend in ended), *why)
        status = wire_status(node, reachability)
        new = not unreached and silence < thresholds.unhealthy_after
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
            new and joining(node, reachability, self.now, cut_off),
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
        "its worker has stopped, its machine is off, or the network to it is down: check that machine "
        f"({node.http_address}: {dial.problem})"
    )


def _unreachable(node: Node, dial: Dial) -> str:
    setting = node.setting("--advertise-http-addr", "LOCALAI_ADVERTISE_HTTP_ADDR")
    return (
        f"registered, but {node.http_address} cannot be reached from the frontend ({dial.problem}); "
        f"open that port there, or set {setting} on the worker"
    )
