"""A worker's part in the fleet: registered, reachable, reporting, and leaving in order (no new work, what
runs ends, then it deregisters; best effort within bounds). It opens no socket of its own; how the frontend
and the bus are reached is given."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import anyio
import structlog

from remuda.core import limits
from remuda.core.bus_reach import UnreachedBus
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import NodeRemoved, NotFound, Rejected, RemudaError
from remuda.core.events import ObservableValue
from remuda.core.ids import BootId, NodeId
from remuda.wire.nodes import Departure
from remuda.worker.bus_session import BusSession
from remuda.worker.enrolment import BusPolicy, Enrolment, EnrolmentStatus, WorkerPhase, WorkerState, describe
from remuda.worker.ports import BusHandlers, FrontendCalls, HardwareSource, OpenBus, ReportSource
from remuda.worker.registration import Describe, Registration
from remuda.worker.reporter import Reporter

log = structlog.get_logger(__name__)


async def depart(
    frontend: FrontendCalls, node: NodeId, boot_id: BootId, *, for_good: bool = False
) -> NotFound | None:
    """Drain, wait until no request is in flight, deregister. What fails on the way is only logged. Returns
    what the frontend said if it does not know the node any more, and so will ask this worker for nothing.

    Both words name this boot: one that is late must not be held against the next.
    """
    departure = Departure(boot_id=boot_id, for_good=for_good)
    with anyio.move_on_after(limits.LEAVE_S):
        drained = False
        try:
            with _attempted("drain"):
                await frontend.drain(node, departure)
                drained = True
            if drained:
                await _wait_idle(frontend, node)
            with _attempted("deregister"):
                await frontend.deregister(node, departure)
                log.info("deregistered", node=node)
        except NotFound as unknown:
            log.info("node_was_removed", node=node, why="the frontend does not know it any more")
            return unknown
    return None


async def _wait_idle(frontend: FrontendCalls, node: NodeId) -> None:
    with anyio.move_on_after(limits.LEAVE_IDLE_S):
        while True:
            if not await _in_flight(frontend, node):
                return
            await anyio.sleep(limits.LEAVE_POLL_S)


async def _in_flight(frontend: FrontendCalls, node: NodeId) -> int:
    """Zero also when the frontend cannot tell: that is not worth waiting for."""
    with _attempted("models"):
        return sum(row.in_flight for row in await frontend.models(node))
    return 0


@contextmanager
def _attempted(step: str) -> Iterator[None]:
    try:
        with anyio.fail_after(limits.LEAVE_CALL_S):
            yield
    except NotFound:
        raise
    except (RemudaError, TimeoutError) as error:
        log.warning("departure_step_failed", step=step, reason=str(error) or "no answer in time")


class Membership:
    """`run` it once. `state` tells how things stand, and `stop` ends it, wherever the wish comes from."""

    def __init__(
        self,
        frontend: FrontendCalls,
        introduce: Describe,
        open_bus: OpenBus,
        hardware: HardwareSource,
        reports: ReportSource,
        *,
        boot_id: BootId,
        heartbeat_interval: timedelta,
        bus: BusPolicy,
        clock: Clock,
        entropy: Entropy,
        listener: BusHandlers | None = None,
        enrolled: Callable[[Enrolment], None] = lambda _: None,
        leaves_for_good: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state: ObservableValue[WorkerState] = ObservableValue(WorkerState(WorkerPhase.REGISTERING))
        self._frontend = frontend
        self._boot_id = boot_id
        self._leaves_for_good = leaves_for_good
        self._stop_reason: str | None = None
        self._told_to_stop = False  # By the frontend, which says so to those that it removes.
        self._stop_wanted = anyio.Event()
        self._refusal: Rejected | None = None
        self._registration = Registration(
            frontend, introduce, bus, clock=clock, entropy=entropy, enrolled=enrolled
        )
        self._line = BusSession(open_bus, self._registration, self._stop_heard, entropy, listener)
        self._reporter = Reporter(
            frontend,
            hardware,
            reports,
            self._line.reachable_as,
            self._bus_trouble,
            boot_id,
            heartbeat_interval,
            entropy=entropy,
            register_again=self._registration.again,
            removed=self._refused,
        )

    @property
    def why_unready(self) -> str:
        """Why commands cannot reach this worker; empty when they can."""
        if self._line.reachable_as.value is not None:
            return self._reporter.uncommandable
        state = self.state.value
        return f"{state.phase}: {state.reason}" if state.reason else state.phase.value

    def stop(self, reason: str) -> None:
        """Begin the orderly stop. The first reason counts; asking again changes nothing."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stop_wanted.set()
            self._show_state()

    def report_changed(self) -> None:
        """Something that a report tells is new: send one now."""
        self._reporter.changed()

    async def deliver_report(self) -> None:
        """Send a report now, and return when a frontend has it."""
        await self._reporter.deliver()

    async def run(self, before_hanging_up: Callable[[], Awaitable[None]] | None = None) -> None:
        """Returns after `stop`, leave taken. Raises a Rejected when the frontend refuses this worker.

        `before_hanging_up` is called while commands can still be answered and no new work is sent here.
        """
        async with anyio.create_task_group() as services:
            services.start_soon(self._show_each, self._registration.standing)
            services.start_soon(self._show_each, self._line.trouble)
            services.start_soon(self._show_each, self._line.reachable_as)
            services.start_soon(self._or_stop, self._line.run)
            async with anyio.create_task_group() as duties:
                duties.start_soon(self._or_stop, self._registration.run)
                duties.start_soon(self._reporter.run)
                await self._stop_wanted.wait()
                # Both have ended before we take leave: a late registration would undo it.
                duties.cancel_scope.cancel()
            unknown = await self._take_leave()
            if unknown is None and before_hanging_up is not None:
                await before_hanging_up()
            services.cancel_scope.cancel()
        if unknown is not None and before_hanging_up is not None:
            await before_hanging_up()  # The bus does not let a removed node in any more.
        if unknown is not None:
            self._refusal = self._refusal or self._removal(unknown)
        if self._refusal is not None:
            raise self._refusal

    def _removal(self, unknown: NotFound) -> NodeRemoved | None:
        """None: the frontend does not know this node, and may have lost its memory of it."""
        if isinstance(unknown, NodeRemoved) or not self._told_to_stop:
            return unknown if isinstance(unknown, NodeRemoved) else None
        hint = "join again with: remuda join URL --token TOKEN"
        return NodeRemoved("this node was removed by an administrator on its frontend", hint=hint)

    def _stop_heard(self) -> None:
        self._told_to_stop = True
        self.stop("the frontend asked for it")

    def _refused(self, refusal: Rejected) -> None:
        self._refusal = refusal
        self.stop("the frontend refuses this worker")  # Why is said by the error that it ends with.

    async def _or_stop(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part that the whole worker cannot do without. A refusal ends the worker, not in a heap."""
        try:
            await part()
        except Rejected as refusal:
            self._refused(refusal)

    async def _take_leave(self) -> NotFound | None:
        """What the frontend said if it does not know this node any more."""
        if (enrolment := self._registration.standing.value.enrolment) is None:
            return None
        for_good = self._leaves_for_good()
        return await depart(self._frontend, enrolment.node_id, self._boot_id, for_good=for_good)

    def _bus_trouble(self) -> tuple[NodeId, str, UnreachedBus | None] | None:
        enrolment, state = self._registration.standing.value.enrolment, self.state.value
        if enrolment is None or not enrolment.takes_bus_trouble or state.phase is not WorkerPhase.CONNECTING:
            return None
        return (enrolment.node_id, state.reason, self._line.unreached) if state.reason else None

    async def _show_each(
        self, part: ObservableValue[EnrolmentStatus] | ObservableValue[str] | ObservableValue[NodeId | None]
    ) -> None:
        async for _ in part.changes():
            self._show_state()

    def _show_state(self) -> None:
        former, line = self.state.value, self._line
        state = describe(
            self._registration.standing.value, line.reachable_as.value, line.trouble.value, self._stop_reason
        )
        self.state.set(state)
        if state.phase is not former.phase:
            log.info("worker_phase_changed", phase=state.phase.value, reason=state.reason, node=state.node_id)
