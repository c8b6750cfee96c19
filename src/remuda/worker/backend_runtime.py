"""Backends on this machine: their files, their processes, the commands about them and the pages that show
them. Survivors of a former life are gone before anything starts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.events import AutoResetEvent
from remuda.core.ids import BootId, MachineId, NodeId
from remuda.gallery.model import Gallery, MachineProfile
from remuda.gallery.sources import Sources
from remuda.host.process_family import Reaper, adopt_orphans, reap_orphans
from remuda.oci.client import RegistryClient
from remuda.wire.node_facts import worker_mark
from remuda.wire.nodes import Report
from remuda.wire.process_keys import ProcessKey
from remuda.worker.addresses import Advertised
from remuda.worker.commands.dispatch import Commands
from remuda.worker.depot.depot import Depot, collect
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.files.objects import SharedStorage
from remuda.worker.files.service import FileService
from remuda.worker.hardware.host import SystemHost
from remuda.worker.http.app import TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.http.server import App
from remuda.worker.launching.environment import scrubbed
from remuda.worker.launching.starting import Starting
from remuda.worker.ports import HardwareSource, Hear, Publish
from remuda.worker.processes.calls import BackendCalls
from remuda.worker.processes.gpu_sharing import GpuSharing
from remuda.worker.processes.logs import ProcessLogs
from remuda.worker.processes.machine import LocalMachine
from remuda.worker.processes.memory_use import UNKNOWN, MemoryMeter, ProcessMemory
from remuda.worker.processes.model import USUAL, BackendTimeouts, PortBook, ProcessPhase, Protocol
from remuda.worker.processes.supervisor import Supervisor, end_survivors
from remuda.worker.staging.fetching import ModelFetcher
from remuda.worker.staging.giving import GivingPages

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Of `environ` backends inherit what they need and what `backend_env` names, less what `secrets` tell."""

    owner: MachineId
    boot: BootId
    tokens: OpeningTokens
    models: Path
    logs: Path
    ports: range
    bind: str = "0.0.0.0"
    open_without_token: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    backend_env: tuple[str, ...] = ()
    blobs_bytes_max: int = 50 << 30
    blobs_unused: timedelta = timedelta(days=14)
    model_files_budget: str = ""  # For those that this worker fetches.
    timeouts: BackendTimeouts = USUAL
    niceness: int = 0  # Of backends.
    yields_gpu: bool = False  # To other programs of the machine's owner.


@dataclass(frozen=True, slots=True)
class FetchAccess:
    """How model files are fetched: by `client`, from the frontend at this URL and from where it says.
    `storage_url` is of the object storage that this worker's own settings name."""

    client: RegistryClient
    frontend_url: str
    storage_url: str = ""


class BackendRuntime:
    """`run` it once; its commands are heard by the worker's line, and `account` goes into its reports."""

    def __init__(
        self,
        settings: RuntimeSettings,
        depot: Depot,
        galleries: Sources,
        open_galleries: Callable[[tuple[Gallery, ...]], Sources],
        machine: Callable[[], Awaitable[MachineProfile]],
        *,
        reached_at: Callable[[], Advertised],
        changed: Callable[[], None],
        deliver: Callable[[], Awaitable[None]],
        clock: Clock,
        entropy: Entropy,
        storage: SharedStorage | None = None,
        fetches: FetchAccess | None = None,
        hardware: HardwareSource | None = None,
    ) -> None:
        """Without `hardware` the memory that processes take is not reported."""
        self._settings = settings
        self._depot = depot
        self._clock = clock
        self._hearing = anyio.CancelScope()
        self._tokens_changed = AutoResetEvent()
        self._logs = ProcessLogs(settings.logs, clock)
        self._reaper = Reaper(settings.owner, settings.boot)
        self._supervisor = Supervisor(
            LocalMachine(settings.owner, settings.boot, self._logs, self._reaper, niceness=settings.niceness),
            BackendCalls(settings.timeouts),
            PortBook(settings.ports[0], settings.ports[-1]),
            clock=clock,
            entropy=entropy,
            changed=changed,
            timeouts=settings.timeouts,
        )
        self._memory = (
            None if hardware is None else MemoryMeter(self._supervisor.replicas, hardware, SystemHost())
        )
        self._sharing = (
            GpuSharing(settings.owner, SystemHost(), clock, changed) if settings.yields_gpu else None
        )
        environ = scrubbed(settings.environ, settings.secrets, settings.backend_env)
        starting = Starting(environ, settings.tokens, settings.bind, settings.timeouts.start)
        self._files = FileService(settings.models, clock=clock, entropy=entropy, storage=storage)
        self._giving = GivingPages(settings.models, lambda: settings.tokens.http, clock)
        self._commands = Commands(
            depot,
            self._supervisor,
            galleries=galleries,
            open_galleries=open_galleries,
            machine=machine,
            recipe_for=starting.recipe,
            reached_at=reached_at,
            models=settings.models,
            changed=changed,
            deliver=deliver,
            more=self._files.commands,
            fetcher=None if fetches is None else self._fetcher(fetches),
            model_files_budget=settings.model_files_budget,
            memory_use=self._memory_use,
        )

    def _memory_use(self, instance: str) -> ProcessMemory:
        return UNKNOWN if self._memory is None else self._memory.of(instance)

    def _fetcher(self, fetches: FetchAccess) -> ModelFetcher:
        return ModelFetcher(
            self._settings.models,
            fetches.client,
            self._files.hashes,
            fetches.frontend_url,
            self._clock,
            fetches.storage_url,
        )

    def handlers(self, node: NodeId, publish: Publish) -> Mapping[str, Hear]:
        return self._commands.handlers(node, publish)

    def tokens_changed(self) -> None:
        """Frontends present other tokens from now on."""
        self._tokens_changed.set()

    def report(self) -> Report:
        report = self._commands.report()
        claimed = "" if self._sharing is None else self._sharing.claimed
        return report.model_copy(update={"gpu_claimed": claimed}) if claimed else report

    @asynccontextmanager
    async def pages(self, why_unready: Callable[[], str]) -> AsyncIterator[App]:
        """What the worker answers over HTTP."""
        guard = TokenGuard(self._settings.tokens, open_without_token=self._settings.open_without_token)
        async with open_door(self._port_of) as door:
            yield application(
                why_unready,
                guard,
                self._logs,
                door,
                self._commands.running,
                self._files.pages,
                self._giving,
                worker_mark(self._settings.owner),
            )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that commands are taken. Cancelled, it ends every process; `close` is kinder."""
        adopt_orphans()
        await end_survivors(self._settings.owner, self._settings.boot)
        await self._depot.recover()
        await self._depot.refresh_builtins()
        async with anyio.create_task_group() as guards:  # They end last: who starts processes is inside.
            await guards.start(self._reaper.run)
            guards.start_soon(reap_orphans)
            guards.start_soon(self._tidy)
            if self._memory is not None:
                guards.start_soon(self._memory.run)
            if self._sharing is not None:
                guards.start_soon(self._sharing.run)
            await guards.start(self._files.run)
            async with anyio.create_task_group() as services:
                await services.start(self._supervisor.run)
                await services.start(self._take_commands)
                services.start_soon(self._end_those_with_old_tokens)
                task_status.started()
            guards.cancel_scope.cancel()

    async def close(self) -> None:
        """The orderly end: nothing new is started, waiting callers get an error, what runs is asked to free
        its memory first."""
        self._hearing.cancel()
        for stopped in await self._supervisor.close():
            if not stopped.gone:
                log.error("backend_left_behind", process=str(stopped.key), reason=stopped.trouble)

    async def _take_commands(self, *, task_status: TaskStatus[None]) -> None:
        with self._hearing:
            await self._commands.run(task_status=task_status)

    async def _end_those_with_old_tokens(self) -> None:
        """A backend gets its token when it starts, so it could no longer be called."""
        while True:
            await self._tokens_changed.wait()
            keys = self._supervisor.opened_otherwise(self._settings.tokens.grpc)
            if keys:
                log.info("backends_given_new_tokens", count=len(keys))
                await self._supervisor.stop(keys, free=True)

    async def _tidy(self) -> None:
        """In the background, now and then: what is not needed makes room."""
        settings = self._settings
        while True:
            try:
                await collect(
                    self._depot,
                    self._clock,
                    budget_bytes=settings.blobs_bytes_max,
                    unused=settings.blobs_unused,
                )
            except OSError as error:
                log.warning("blobs_not_collected", error=str(error))
            await anyio.sleep(limits.BLOBS_COLLECT_EVERY_S)

    def _port_of(self, key: ProcessKey) -> int | None:
        for replica in self._supervisor.replicas():
            serves = replica.protocol is Protocol.HTTP and replica.phase in (
                ProcessPhase.READY,
                ProcessPhase.UNRESPONSIVE,
            )
            if replica.key == key and serves:
                return replica.port
        return None
