"""Builds what `remuda up` runs: a frontend, and a worker of its own on this machine."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
from pydantic import SecretStr

from remuda.assembly.frontend import RunningFrontend, admission_policy, running_frontend
from remuda.assembly.own_worker import OwnWorker
from remuda.assembly.running import background, log_style
from remuda.assembly.settings import UpSettings, WorkerSettings
from remuda.core import limits
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import RemudaError
from remuda.core.ids import MachineId
from remuda.core.settings import ResolvedSettings, as_environment
from remuda.fleet.fleet import Standing
from remuda.fleet.health import NodeStatus
from remuda.fleet.identity import hash_of
from remuda.fleet.registry import Registry
from remuda.host.folder import DataFolder
from remuda.worker.identity import machine_id, node_secret
from remuda.worker.launching.environment import for_backends

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
    async with running_frontend(settings, policy, starts_worker=starts_worker) as frontend:
        worker = OwnWorker(
            (sys.executable, "-m", "remuda", "worker"),
            worker_environment(resolved, frontend, os.environ),
            folder,
            tell_fleet=frontend.own_worker_ended,
            show=show,
        )
        async with background(worker.run):
            yield RunningUp(frontend, worker, machine)


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
