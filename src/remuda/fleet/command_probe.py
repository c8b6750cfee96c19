"""Asks each node's worker something over the bus once in a while. Heartbeats come by HTTP: a worker that is
connected to another bus sends them all the same, and no command ever reaches it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.health import Reachability, Standing, Thresholds
from remuda.fleet.model import CommandProbe, Node, NodeType
from remuda.fleet.ports import FleetStore

log = structlog.get_logger()


class ProbeReply(StrEnum):
    ANSWERED = "answered"
    NO_RESPONDERS = "no responders"  # The bus itself says that there is no subscriber.
    UNKNOWN = "unknown"  # No answer in time, or our own connection was lost: says nothing about the worker.


@dataclass(frozen=True, slots=True)
class LastProbe:
    """What is known of one node after its latest probe."""

    boot_id: BootId
    at: datetime
    unheard: int = (
        0  # Probes in a row without a subscriber, each after a heartbeat that followed the one before.
    )
    recorded: bool | None = None  # Whether it was last written down as reached; None: nothing was.
    unheard_at: datetime | None = None  # When the latest of the unheard was sent.

    @property
    def reached(self) -> bool | None:
        """None: not known. There is no subscriber for a worker that reconnects, nor for one that was killed
        or whose machine sleeps: only heartbeats between the probes show that it lives, and listens
        elsewhere."""
        if 0 < self.unheard < limits.PROBES_UNHEARD:
            return None
        return self.unheard == 0


def due(standings: Sequence[Standing], last: Mapping[NodeId, LastProbe], now: datetime) -> list[Node]:
    """Nodes to probe now, the one that has waited longest first, and not too many at once.

    One of ours that has not connected yet tells its trouble by itself. A node that is not approved has
    no access to the bus, and agents answer on other subjects.
    """
    nodes = [
        standing.node
        for standing in standings
        if standing.reachability in (Reachability.UP, Reachability.SILENT)
        and standing.node.approved
        and standing.node.node_type is NodeType.BACKEND
        and not standing.node.connecting
        and not standing.node.cut_off
        and _is_due(standing.node, last.get(standing.node.id), now)
    ]
    new = [node for node in nodes if node.id not in last]
    known = sorted((node for node in nodes if node.id in last), key=lambda node: last[node.id].at)
    return [*new, *known][: limits.PROBES_PER_LOOK_MAX]


def _is_due(node: Node, last: LastProbe | None, now: datetime) -> bool:
    if last is None or last.boot_id != node.boot_id or last.unheard:
        return True
    return now - last.at >= timedelta(seconds=limits.PROBE_EVERY_S)


def after_probe(node: Node, before: LastProbe | None, reply: ProbeReply, now: datetime) -> LastProbe:
    if before is None or before.boot_id != node.boot_id:
        before = LastProbe(node.boot_id, now)
    match reply:
        case ProbeReply.ANSWERED:
            return LastProbe(node.boot_id, now, 0, before.recorded)
        case ProbeReply.NO_RESPONDERS:
            if before.unheard_at is None or node.last_heartbeat > before.unheard_at:
                return LastProbe(node.boot_id, now, before.unheard + 1, before.recorded, now)
            return replace(before, at=now)
        case ProbeReply.UNKNOWN:
            return replace(before, at=now)


def not_subscribed(node: Node, bus: str) -> str:
    """Why commands do not reach a worker that is not found on `bus`, with what to change there."""
    if node.version:
        return (
            f"its worker is connected to another bus than the frontend's, which is {bus}; "
            "start it without --nats-url (REMUDA_NATS_URL), or with that address"
        )
    return f"its worker does not listen on the frontend's bus, {bus}; check LOCALAI_NATS_URL there"


class CommandProber:
    """`ask` sends a cheap request to a node's worker. `steady`: whether this frontend's bus has been up for
    long enough that workers would have found it; until then no node is judged. `bus` names it to people."""

    def __init__(
        self,
        frontend: FrontendId,
        store: FleetStore,
        ask: Callable[[NodeId], Awaitable[ProbeReply]],
        *,
        steady: Callable[[], bool],
        bus: Callable[[], str],
        thresholds: Thresholds,
    ) -> None:
        self._frontend = frontend
        self._store = store
        self._ask = ask
        self._steady = steady
        self._bus = bus
        self._thresholds = thresholds
        self._last: dict[NodeId, LastProbe] = {}
        self._problems: dict[NodeId, str] = {}  # Of nodes whose workers were not found.

    def problem_of(self, node_id: NodeId) -> str:
        """Why commands from here do not reach the node's worker; empty when they do, as far as is known."""
        return self._problems.get(node_id, "")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.probe_once()
            except RemudaError as error:
                log.warning("command_probes_not_recorded", reason=error.message)
            await anyio.sleep(limits.PROBE_LOOK_EVERY_S)

    async def probe_once(self) -> None:
        if not self._steady():
            return
        fleet = await self._store.fleet()
        standings = fleet.standings(self._thresholds)
        present = {standing.node.id for standing in standings}
        self._last = {node_id: probe for node_id, probe in self._last.items() if node_id in present}
        self._problems = {
            node_id: why for node_id, why in self._problems.items() if why and node_id in present
        }
        nodes = due(standings, self._last, fleet.now)
        replies = await self._replies(nodes)
        if not self._steady():  # What was heard, or not, while the bus went away counts for nothing.
            return
        for node in nodes:
            self._last[node.id] = after_probe(node, self._last.get(node.id), replies[node.id], fleet.now)
        await self._record([node for node in nodes if self._is_news(node)], fleet.now)

    async def _replies(self, nodes: Sequence[Node]) -> Mapping[NodeId, ProbeReply]:
        replies: dict[NodeId, ProbeReply] = {}
        limiter = anyio.CapacityLimiter(limits.PROBES_AT_ONCE_MAX)

        async def ask(node: Node) -> None:
            async with limiter:
                replies[node.id] = await self._ask(node.id)

        async with anyio.create_task_group() as asking:
            for node in nodes:
                asking.start_soon(ask, node)
        return replies

    def _is_news(self, node: Node) -> bool:
        last = self._last[node.id]
        return last.reached is not None and last.reached is not last.recorded

    async def _record(self, nodes: Sequence[Node], now: datetime) -> None:
        problems = {
            node.id: "" if self._last[node.id].reached else not_subscribed(node, self._bus())
            for node in nodes
        }
        await self._store.record_probes(
            [CommandProbe(node.id, self._frontend, problems[node.id], now, node.boot_id) for node in nodes]
        )
        self._problems.update(problems)
        for node in nodes:
            last = self._last[node.id]
            self._last[node.id] = replace(last, recorded=last.reached)
            if not last.reached:
                log.warning("node_not_on_our_bus", node=node.name, id=node.id, bus=self._bus())
