"""A whole worker: fleet membership, backends and HTTP server, started and stopped in order."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import SecretStr

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Rejected
from remuda.core.events import ObservableValue
from remuda.wire.node_facts import worker_mark
from remuda.wire.nodes import RegisterRequest
from remuda.worker.addresses import (
    AddressSettings,
    Advertised,
    Listening,
    advertised,
    claim,
    joined,
    source_host,
)
from remuda.worker.backend_runtime import BackendRuntime
from remuda.worker.enrolment import BusPolicy, Enrolment, OpeningTokens, WorkerState
from remuda.worker.frontend import CALL_LIMIT, Frontend
from remuda.worker.http.app import probes
from remuda.worker.http.server import App, serve
from remuda.worker.identity import Introduction, register_request
from remuda.worker.membership import Membership
from remuda.worker.ports import BusHandlers, HardwareSource, OpenBus, ReportSource
from remuda.worker.reporter import NothingYet


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings as values; where they come from is `cli`'s to know."""

    frontend_url: str
    token: SecretStr | None
    introduction: Introduction
    secret: SecretStr | None = None  # Proves that this is the same machine as before.
    heartbeat_interval: timedelta = timedelta(seconds=10)
    ca: Path | None = None
    call_limit: timedelta = CALL_LIMIT
    addresses: AddressSettings = field(default_factory=AddressSettings)
    bus: BusPolicy = field(default_factory=BusPolicy)
    leaves_for_good: Callable[[], bool] = lambda: False  # Asked when it stops.


@dataclass(frozen=True, slots=True)
class Site:
    """What the backends of a worker need to know of it."""

    listening: Listening
    reached_at: Callable[[], Advertised]  # As the registration has it.
    changed: Callable[[], None]  # Something that a report tells is new.
    deliver: Callable[[], Awaitable[None]]  # Send a report now; returns when a frontend has it.
    tokens: OpeningTokens


MakeRoom = Callable[[Site], BackendRuntime]


class Worker:
    """`run` it once. `state` tells what it is doing, and `stop` ends it, wherever the wish comes from.

    Without `make_room` it runs no backends, and is a member of the fleet all the same.
    """

    def __init__(
        self,
        config: WorkerConfig,
        open_bus: OpenBus,
        hardware: HardwareSource,
        *,
        clock: Clock,
        entropy: Entropy,
        reports: ReportSource | None = None,
        listener: BusHandlers | None = None,
        make_room: MakeRoom | None = None,
    ) -> None:
        """Raises Misconfigured for addresses, a frontend URL or a CA file that cannot be used."""
        self._config = config
        self._hardware = hardware
        self._ended = anyio.Event()
        self._refusal: Rejected | None = None
        self._frontend = Frontend(
            config.frontend_url, config.token, config.ca, config.call_limit, secret=config.secret
        )
        self._tokens = OpeningTokens(config.token)
        self._listening = claim(config.addresses, config.frontend_url)
        self._reached_at = advertised(
            config.addresses, self._listening.base_port, self._listening.http_port, "127.0.0.1"
        )
        self._room = make_room(self._site()) if make_room else None
        self._membership = Membership(
            self._frontend,
            self._introduce,
            open_bus,
            hardware,
            reports or self._room or NothingYet(),
            boot_id=config.introduction.boot_id,
            heartbeat_interval=config.heartbeat_interval,
            bus=config.bus,
            clock=clock,
            entropy=entropy,
            listener=listener or self._room,
            enrolled=self._enrolled,
            leaves_for_good=config.leaves_for_good,
        )

    def _site(self) -> Site:
        return Site(
            self._listening, lambda: self._reached_at, self.report_changed, self._deliver_report, self._tokens
        )

    def _enrolled(self, enrolment: Enrolment) -> None:
        if self._tokens.adopt(enrolment.tokens) and self._room is not None:
            self._room.tokens_changed()

    @property
    def http_url(self) -> str:
        """Its HTTP server, for processes on this machine."""
        host = self._listening.socket.getsockname()[0]
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{joined(here, self._listening.http_port)}"

    @property
    def state(self) -> ObservableValue[WorkerState]:
        return self._membership.state

    def stop(self, reason: str) -> None:
        """Begin the orderly stop. The first reason counts; asking again changes nothing."""
        self._membership.stop(reason)

    def report_changed(self) -> None:
        """Something that a report tells is new: send one now."""
        self._membership.report_changed()

    async def _deliver_report(self) -> None:
        await self._membership.deliver_report()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that the HTTP server answers. Returns after `stop`; raises a Rejected when the
        settings cannot be used or the frontend refuses this worker.

        Cancelling it is one more way to ask for the orderly stop, which is bounded and is seen through.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._live, task_status)
            try:
                await self._ended.wait()
            finally:
                self.stop("this process was asked to stop")
        if self._refusal is not None:
            raise self._refusal

    async def _live(self, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as services, AsyncExitStack() as open_things:
                app = await self._furnished(services, open_things)
                await services.start(serve, app, self._listening.socket)
                task_status.started()
                try:
                    await self._membership.run(self._room.close if self._room else None)
                except Rejected as refusal:
                    self._refusal = refusal
                await self._frontend.aclose()
                services.cancel_scope.cancel()
        self._ended.set()

    async def _furnished(self, services: TaskGroup, open_things: AsyncExitStack) -> App:
        """Whatever runs backends is up before commands are accepted."""
        if self._room is None:
            mark = worker_mark(self._config.introduction.machine_id)
            return probes(lambda: self._membership.why_unready, mark)
        await services.start(self._room.run)
        return await open_things.enter_async_context(self._room.pages(lambda: self._membership.why_unready))

    async def _introduce(self) -> RegisterRequest:
        host = await source_host(self._config.frontend_url, self._listening.socket.family)
        self._reached_at = advertised(
            self._config.addresses, self._listening.base_port, self._listening.http_port, host
        )
        hardware = await self._hardware.current()
        return register_request(self._config.introduction, hardware, self._reached_at)
