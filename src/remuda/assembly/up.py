"""Builds what `remuda up` runs: a frontend, and a worker process of its own on this machine, restarted when
it exits, with the reason reported to the fleet.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda.assembly.frontend import RunningFrontend, admission_policy, running_frontend
from remuda.assembly.running import background, log_style
from remuda.assembly.settings import UpSettings, WorkerSettings
from remuda.core import limits
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import RemudaError
from remuda.core.ids import MachineId
from remuda.core.settings import ResolvedSettings, as_environment
from remuda.fleet.health import NodeStatus, Standing
from remuda.fleet.identity import hash_of
from remuda.fleet.registry import Registry
from remuda.host.children import Child, LaunchSpec, supervise
from remuda.host.folder import DataFolder, write_json
from remuda.host.restarts import RestartPolicy
from remuda.worker.identity import machine_id, node_secret
from remuda.worker.launching.environment import for_backends

log = structlog.get_logger()

_RESTARTS: Final = RestartPolicy(
    first=timedelta(milliseconds=500), most=timedelta(seconds=30), healthy_after=timedelta(seconds=30)
)
_ERROR: Final = "error: "  # Prefix of the line in which our commands report an error; see cli.exits.


class OwnWorker:
    """`tell_fleet` is called with the reason each time the worker exits; `show` with each line it prints."""

    def __init__(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        folder: DataFolder,
        *,
        tell_fleet: Callable[[str], Awaitable[None]],
        show: Callable[[str], None],
    ) -> None:
        self.trouble = ""  # The last process's error message; empty: none.
        self._folder = folder
        self._tell_fleet = tell_fleet
        self._show = show
        self._error = ""
        grace = timedelta(seconds=limits.LOCAL_WORKER_STOP_S)
        self._spec = LaunchSpec("worker", argv, env=env, output=self._hear, grace=grace)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            # An exit with success was asked for, for example by an administrator who removed this node.
            await supervise(
                self._spec,
                _RESTARTS,
                on_start=self._started,
                on_end=self._ended,
                ends_with_success=True,
                task_status=task_status,
            )
        finally:
            self._forget_ending()

    def _hear(self, line: str) -> None:
        if line.startswith(_ERROR):
            self._error = line.removeprefix(_ERROR)
        self._show(line)

    async def _started(self, child: Child) -> None:
        self._error = ""

    async def _ended(self, ending: str) -> None:
        self.trouble = self._error
        why = f"its worker ended ({self._error or ending}); remuda up starts it again"
        self._keep_ending(self._error or ending)
        with anyio.move_on_after(limits.STORE_PING_S) as scope:
            try:
                await self._tell_fleet(why)
            except RemudaError as error:
                log.warning("worker_end_not_recorded", reason=error.message)
        if scope.cancelled_caught:
            log.warning("worker_end_not_recorded", reason="the database does not answer")

    def _keep_ending(self, why: str) -> None:
        """For `remuda doctor`. Best effort: when the disk is full, doctor finds that by itself."""
        with suppress(OSError):
            write_json(self._folder.worker_ending, {"reason": why})

    def _forget_ending(self) -> None:
        with suppress(OSError):
            self._folder.worker_ending.unlink(missing_ok=True)


_POLL_S = 0.05


class Reachable(Protocol):
    """What a worker has to know of its frontend."""

    @property
    def local_url(self) -> str: ...

    @property
    def token(self) -> SecretStr | None: ...


@dataclass(frozen=True, slots=True)
class RunningUp:
    frontend: RunningFrontend
    worker: OwnWorker
    machine: MachineId
    starter: str = ""  # The model that is being installed because this is the first start; empty: none is.

    async def own_node(self) -> Standing | None:
        return await _own_node(self.frontend.registry, self.machine, self.worker)


@asynccontextmanager
async def running_up(
    resolved: ResolvedSettings[UpSettings], show: Callable[[str], None]
) -> AsyncIterator[RunningUp]:
    """The frontend answers, and the worker's process is started, when the block begins. `show` gets the lines
    that the worker prints."""
    settings = resolved.values
    folder = DataFolder(settings.data_dir)
    folder.prepare()
    machine = MachineId(machine_id(folder.worker, SystemEntropy()))
    secret = node_secret(folder.worker, SystemEntropy()).get_secret_value()
    policy = admission_policy(
        settings,
        otherwise=True,
        own=frozenset({machine}),
        own_secrets=frozenset({hash_of(secret.encode())}),
    )
    starts_worker = not folder.is_held_by("worker")
    async with running_frontend(
        settings, policy, starts_worker=starts_worker, origins=resolved.origins
    ) as frontend:
        worker = OwnWorker(
            (sys.executable, "-m", "remuda", "worker"),
            worker_environment(resolved, frontend, os.environ),
            folder,
            tell_fleet=frontend.own_worker_ended,
            show=show,
        )
        async with background(worker.run):
            starter = await frontend.starter.offer(wanted=settings.starter)
            yield RunningUp(frontend, worker, machine, starter)


def worker_environment(
    resolved: ResolvedSettings[UpSettings], frontend: Reachable, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """This process's environment less all settings but those for backends, then just those that are a
    worker's business: it must not hold the database's password or the bus account's seed."""
    also = resolved.values.backend_env
    plain = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("REMUDA_", "LOCALAI_")) or for_backends(name, also)
    }
    level, style = log_style(resolved)  # The worker writes to a pipe; we know what is at the end of it.
    own = {
        "REMUDA_REGISTER_TO": frontend.local_url,
        "REMUDA_DATA_DIR": str(resolved.values.data_dir),
        "REMUDA_LOG_LEVEL": level,
        "REMUDA_LOG_FORMAT": style,
    }
    if frontend.token is not None:
        own["REMUDA_REGISTRATION_TOKEN"] = frontend.token.get_secret_value()
    return {**plain, **as_environment(WorkerSettings, resolved.given), **own}


async def _own_node(registry: Registry, own: MachineId, worker: OwnWorker) -> Standing | None:
    """This machine's node once it is healthy, or as it is when patience ends or its worker has failed."""
    found: Standing | None = None
    with anyio.move_on_after(limits.LOCAL_NODE_S):
        # A worker that has only registered may still find that it cannot connect to the bus.
        while found is None or found.status is not NodeStatus.HEALTHY or found.node.report is None:
            try:
                standings = await registry.standings()
            except RemudaError:  # A database that fails meanwhile must not end everything.
                standings = []
            found = next((one for one in standings if one.node.machine_id == own), None)
            if worker.trouble:
                break
            await anyio.sleep(_POLL_S)
    return found
