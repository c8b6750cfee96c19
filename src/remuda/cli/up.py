"""Composition root of `remuda up`: a frontend, its bus, and a worker of its own on this machine."""

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Protocol

import anyio
import click
import structlog
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda.cli.banner import show_up
from remuda.cli.frontend import RunningFrontend, admission_policy, running_frontend
from remuda.cli.running import Stop, background, log_as, log_style, run_until_signal, settle
from remuda.cli.settings import UpSettings, WorkerSettings
from remuda.core import limits
from remuda.core.entropy import SystemEntropy
from remuda.core.ids import MachineId
from remuda.core.settings import Resolved, as_environment
from remuda.fleet.fleet import Standing
from remuda.fleet.health import NodeStatus
from remuda.fleet.identity import hash_of
from remuda.fleet.registry import Registry
from remuda.host.children import LaunchSpec, supervise
from remuda.host.folder import DataFolder
from remuda.host.restarts import RestartPolicy
from remuda.worker.identity import machine_id, node_secret
from remuda.worker.launching.environment import for_backends

log = structlog.get_logger()
_RESTARTS = RestartPolicy(
    first=timedelta(milliseconds=500), most=timedelta(seconds=30), healthy_after=timedelta(seconds=30)
)
_POLL_S = 0.05


class Reachable(Protocol):
    """What a worker has to know of its frontend."""

    @property
    def local_url(self) -> str: ...

    @property
    def token(self) -> SecretStr | None: ...


def run(resolved: Resolved[UpSettings]) -> int:
    """`remuda up`: serve until told to stop."""
    log_as(resolved)
    return run_until_signal(partial(_up, resolved))


async def _up(resolved: Resolved[UpSettings], stop: Stop) -> int:
    settings = resolved.values
    folder = DataFolder(settings.data_dir)
    folder.prepare()
    own = MachineId(machine_id(folder.worker, SystemEntropy()))
    secret = node_secret(folder.worker, SystemEntropy()).get_secret_value()
    policy = admission_policy(
        settings,
        otherwise=True,
        own=frozenset({own}),
        own_secrets=frozenset({hash_of(secret.encode())}),
    )
    async with running_frontend(settings, policy) as frontend:
        spec = LaunchSpec(
            "worker",
            (sys.executable, "-m", "remuda", "worker"),
            env=_worker_environment(resolved, frontend, os.environ),
            output=partial(click.echo, err=True),
            grace=timedelta(seconds=limits.LOCAL_WORKER_STOP_S),
        )
        # A worker that ends well was told to: by an admin who removed this node, for one.
        worker = partial(supervise, spec, _RESTARTS, ends_with_success=True)
        async with background(worker, partial(_show_when_ready, frontend, settings, own)):
            settle()
            await stop.wait()
    return 0


async def _show_when_ready(
    frontend: RunningFrontend,
    settings: UpSettings,
    own: MachineId,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    show_up(frontend, settings, await _own_node(frontend.registry, own))


def _worker_environment(
    resolved: Resolved[UpSettings], frontend: Reachable, environ: Mapping[str, str]
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


async def _own_node(registry: Registry, own: MachineId) -> Standing | None:
    """This machine's node once it is healthy, or however it is when patience ends."""
    found: Standing | None = None
    with anyio.move_on_after(limits.LOCAL_NODE_S):
        # A worker that has only registered may still find that it cannot connect to the bus.
        while found is None or found.status is not NodeStatus.HEALTHY or found.node.report is None:
            standings = await registry.standings()
            found = next((one for one in standings if one.node.machine_id == own), None)
            await anyio.sleep(_POLL_S)
    return found
