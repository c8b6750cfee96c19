"""Heartbeats: written in groups, and proof at intervals that this frontend can receive them: only such time
counts as a node's silence. Logs each change of a node's status once.

While one group is being written, and for a moment after, the next one gathers, so that a thousand nodes cost
a few transactions, and each sender still hears only what is durable. One that comes alone waits for nobody.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import NotFound, Rejected, RemudaError, Unauthorized, Unavailable
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.admission import Beat, HeartbeatOutcome
from remuda.fleet.health import NodeStatus, Standing, Thresholds
from remuda.fleet.identity import CallerIdentity
from remuda.fleet.ports import OFFLINE, ONLINE, FleetStore, Note, ReportSignal

log = structlog.get_logger()


@dataclass(slots=True)
class _Waiting:
    beat: Beat
    written: anyio.Event = field(default_factory=anyio.Event)
    failure: RemudaError | None = None

    def settle(self, failure: RemudaError | None) -> None:
        self.failure = failure
        self.written.set()


class HeartbeatIntake:
    """`signal` is given when a node has reported something new about itself."""

    def __init__(self, store: FleetStore, signal: ReportSignal | None = None) -> None:
        self._store = store
        self._signal = signal
        self._told: dict[NodeId, str] = {}  # By each node that reports to this frontend, last.
        self._proven: dict[NodeId, CallerIdentity] = {}  # Who was last heard as each node.
        self._send, self._receive = anyio.create_memory_object_stream[_Waiting](limits.HEARTBEATS_WAITING_MAX)

    async def take(self, beat: Beat) -> None:
        """Returns when the heartbeat is written. NotFound: unknown node, or another boot's; Unauthorized: not
        the node's own; Unavailable: not written."""
        waiting = _Waiting(beat)
        if (
            not self.has_heard(beat.node_id, beat.caller)
            and self._queued > limits.HEARTBEATS_WAITING_MAX // 2
        ):
            # Callers that have not proven who they are must not take the places of those that have.
            raise Unavailable("too many heartbeats are waiting to be written", hint="send it again")
        try:
            self._send.send_nowait(waiting)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Unavailable("too many heartbeats are waiting to be written", hint="send it again") from None
        with anyio.move_on_after(limits.HEARTBEAT_WRITE_S):
            await waiting.written.wait()
        if not waiting.written.is_set():
            raise Unavailable("the heartbeat could not be written in time", hint="send it again")
        if waiting.failure is not None:
            raise waiting.failure

    def has_heard(self, node_id: NodeId, caller: CallerIdentity) -> bool:
        """Whether the last heartbeat that was taken as this node's came from that caller."""
        return self._proven.get(node_id) == caller

    @property
    def _queued(self) -> int:
        return self._receive.statistics().current_buffer_used

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        with self._receive, self._send:
            async for first in self._receive:
                group = [first]
                while len(group) < limits.HEARTBEATS_PER_WRITE_MAX:
                    try:
                        group.append(self._receive.receive_nowait())
                    except anyio.WouldBlock:
                        break
                await self._write(group)
                await anyio.sleep(limits.HEARTBEATS_GATHER_S)

    async def _write(self, group: list[_Waiting]) -> None:
        try:
            outcomes = await self._store.beat([waiting.beat for waiting in group])
        except Rejected as error:
            await self._write_apart(group, error)
            return
        except RemudaError as error:
            log.warning("heartbeats_not_written", count=len(group), reason=error.message)
            for waiting in group:
                waiting.settle(error)
            return
        taken: list[Beat] = []
        for waiting, what in zip(group, outcomes, strict=True):
            waiting.settle(_refusal(what))
            if what is HeartbeatOutcome.TAKEN:
                taken.append(waiting.beat)
            elif what is HeartbeatOutcome.UNPROVEN and self.has_heard(
                waiting.beat.node_id, waiting.beat.caller
            ):
                del self._proven[waiting.beat.node_id]  # It was the node's own until its token was withdrawn.
        self._remember(taken)
        if any([self._is_news(beat) for beat in taken]) and self._signal is not None:
            self._signal.notify()

    def _remember(self, taken: Iterable[Beat]) -> None:
        for beat in taken:
            self._proven.pop(beat.node_id, None)
            self._proven[beat.node_id] = beat.caller
        while len(self._proven) > limits.HEARTBEATS_WAITING_MAX:
            del self._proven[next(iter(self._proven))]

    def _is_news(self, beat: Beat) -> bool:
        if beat.report is None or self._told.get(beat.node_id) == beat.report.body:
            return False
        self._told.pop(beat.node_id, None)
        self._told[beat.node_id] = beat.report.body
        while len(self._told) > limits.HEARTBEATS_WAITING_MAX:  # Nodes that are long gone, if anything.
            del self._told[next(iter(self._told))]
        return True

    async def _write_apart(self, group: list[_Waiting], refused: Rejected) -> None:
        """Something in the group cannot be written: that is its sender's trouble alone."""
        if len(group) == 1:
            group[0].settle(refused)
            return
        for waiting in group:
            await self._write([waiting])


def _refusal(outcome: HeartbeatOutcome) -> RemudaError | None:
    match outcome:
        case HeartbeatOutcome.TAKEN:
            return None
        case HeartbeatOutcome.STRANGE:
            return NotFound("node not found")
        case HeartbeatOutcome.UNPROVEN:
            return Unauthorized("this heartbeat is not authenticated as the node it names")


_OUTAGE_AFTER: Final = timedelta(seconds=30)  # A worker that is only restarted is back sooner.


def outage(standing: Standing) -> Note:
    """For the node's history: it cannot be used, and why; or it can be again."""
    if standing.status is not NodeStatus.OFFLINE:
        return Note(ONLINE)
    return Note(OFFLINE, standing.reasons[0] if standing.reasons else "")


class Listener:
    """`bus_round_trip` raises a RemudaError while the bus does not answer."""

    def __init__(
        self,
        frontend: FrontendId,
        store: FleetStore,
        bus_round_trip: Callable[[], Awaitable[None]],
        thresholds: Thresholds,
        observe: Callable[[Sequence[Standing]], None],
    ) -> None:
        self._frontend = frontend
        self._store = store
        self._bus_round_trip = bus_round_trip
        self._thresholds = thresholds
        self._observe = observe
        self.store_trouble: RemudaError | None = None  # Why it could not be written when last tried.
        self._deaf = True  # A new frontend heard nothing before it was there.
        self._seen: Sequence[Standing] = ()
        self._statuses: dict[NodeId, NodeStatus] = {}
        self._away: dict[NodeId, bool] = {}  # As the history has it, by what was noted from here.

    @property
    def seen(self) -> Sequence[Standing]:
        """The fleet at the last look; nothing while it cannot be heard."""
        return () if self._deaf else self._seen

    @property
    def every(self) -> timedelta:
        """Often enough for the shortest silence that counts."""
        return min(timedelta(seconds=limits.LIVENESS_EVERY_S), self._thresholds.unhealthy_after / 4)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self.listen_once()
        task_status.started()
        while True:
            await anyio.sleep(self.every.total_seconds())
            await self.listen_once()

    async def listen_once(self) -> None:
        try:
            await self._bus_round_trip()
            await self._write()
            fleet = await self._store.fleet()
        except RemudaError as error:
            if not self._deaf:
                log.warning("liveness_lost", reason=error.message)
            self._deaf = True
            return
        if self._deaf:
            log.info("liveness_began")
        self._deaf = False
        standings = fleet.standings(self._thresholds)
        self._seen = standings
        self._say_changes(standings)
        self._observe(standings)
        await self._note_outages(standings)

    async def _write(self) -> None:
        """A database may answer questions and refuse every change: its disk is full, or it is read-only."""
        try:
            await self._store.listen(self._frontend, resumed=self._deaf)
        except RemudaError as error:
            self.store_trouble = error
            raise
        self.store_trouble = None

    async def _note_outages(self, standings: Sequence[Standing]) -> None:
        """What cannot be written now is tried again at the next look."""
        away = {
            standing.node.id: standing.status is NodeStatus.OFFLINE
            for standing in standings
            if standing.status is not NodeStatus.OFFLINE or standing.heard_ago >= _OUTAGE_AFTER
        }
        notes = [
            (standing.node.id, outage(standing))
            for standing in standings
            if standing.node.id in away and self._away.get(standing.node.id) is not away[standing.node.id]
        ]
        try:
            await self._store.note_outages(notes)
        except RemudaError as error:
            log.warning("outages_not_noted", reason=error.message)
        else:
            known = {standing.node.id for standing in standings}
            self._away = {node: gone for node, gone in (self._away | away).items() if node in known}

    def _say_changes(self, standings: Sequence[Standing]) -> None:
        for standing in standings:
            node, status = standing.node, standing.status
            before = self._statuses.get(node.id)
            if before is not None and before is not status:
                log.info("node_status_changed", node=node.name, was=before, now=status, why=standing.reasons)
        self._statuses = {standing.node.id: standing.status for standing in standings}
