"""A whole worker: assembles the parts, runs them in one task group, and stops them in good order."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Rejected
from remuda.core.ids import NodeId
from remuda.wire.nodes import RegisterRequest
from remuda.worker.addresses import AddressSettings, Listening, advertised, claim, source_host
from remuda.worker.departure import depart
from remuda.worker.enrolment import BusPolicy, Standing
from remuda.worker.frontend import Frontend
from remuda.worker.http import probes, serve
from remuda.worker.introduction import Introduction, register_request
from remuda.worker.line import Line
from remuda.worker.ports import HardwareSource, OpenBus, ReportSource
from remuda.worker.registration import Registration
from remuda.worker.reporter import NothingYet, Reporter
from remuda.worker.state import Phase, WorkerState, describe
from remuda.worker.watched import Watched

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings as values; where they come from is `cli`'s to know."""

    frontend_url: str
    token: SecretStr | None
    introduction: Introduction
    heartbeat_interval: timedelta = timedelta(seconds=10)
    ca: Path | None = None
    addresses: AddressSettings = field(default_factory=AddressSettings)
    bus: BusPolicy = field(default_factory=BusPolicy)


class Worker:
    """`run` it once. `state` tells what it is doing, and `stop` ends it, wherever the wish comes from."""

    def __init__(
        self,
        config: WorkerConfig,
        open_bus: OpenBus,
        hardware: HardwareSource,
        *,
        clock: Clock,
        entropy: Entropy,
        reports: ReportSource | None = None,
    ) -> None:
        """Raises Misconfigured for a frontend URL or certificate authority that cannot be used."""
        self.state: Watched[WorkerState] = Watched(WorkerState(Phase.REGISTERING))
        self._config = config
        self._hardware = hardware
        self._listening: Listening | None = None
        self._stop_reason: str | None = None
        self._stop_wanted = anyio.Event()
        self._ended = anyio.Event()
        self._refusal: Rejected | None = None
        self._frontend = Frontend(config.frontend_url, config.token, config.ca)
        self._registration = Registration(
            self._frontend, self._introduce, config.bus, clock=clock, entropy=entropy
        )
        self._line = Line(
            open_bus, self._registration, lambda: self.stop("the frontend asked for it"), entropy
        )
        self._reporter = Reporter(
            self._frontend,
            hardware,
            reports or NothingYet(),
            self._line.reachable_as,
            config.introduction.boot_id,
            config.heartbeat_interval,
            entropy=entropy,
            register_again=self._registration.again,
        )

    def stop(self, reason: str) -> None:
        """Begin the orderly stop. The first reason counts; whoever asks again changes nothing."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stop_wanted.set()
            self._show_state()

    def report_changed(self) -> None:
        """Something that a report tells is new: send one now."""
        self._reporter.changed()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that the HTTP server answers. Returns after `stop`; raises a Rejected when the
        settings cannot be used or the frontend refuses this worker.

        Cancelling it is one more way to ask for the orderly stop, which is bounded and is seen through.
        """
        self._listening = claim(self._config.addresses, self._config.frontend_url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._live, self._listening, task_status)
            try:
                await self._ended.wait()
            finally:
                self.stop("this process was told to end")
        if self._refusal is not None:
            raise self._refusal

    async def _live(self, listening: Listening, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as services:
                await services.start(serve, probes(self._ready), listening.socket)
                task_status.started()
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
                await self._take_leave()
                services.cancel_scope.cancel()
        self._ended.set()

    async def _or_stop(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part that the whole worker cannot do without. A refusal ends the worker, not in a heap."""
        try:
            await part()
        except Rejected as refusal:
            self._refusal = refusal
            self.stop(refusal.message)

    async def _introduce(self) -> RegisterRequest:
        assert self._listening is not None, "it registers only while it runs"
        host = await source_host(self._config.frontend_url, self._listening.socket.family)
        reached_at = advertised(
            self._config.addresses, self._listening.base_port, self._listening.http_port, host
        )
        return register_request(self._config.introduction, await self._hardware.current(), reached_at)

    async def _take_leave(self) -> None:
        if (enrolment := self._registration.standing.value.enrolment) is not None:
            await depart(self._frontend, enrolment.node_id)
        await self._frontend.aclose()

    def _ready(self) -> bool:
        return self._line.reachable_as.value is not None

    async def _show_each(self, part: Watched[Standing] | Watched[str] | Watched[NodeId | None]) -> None:
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
