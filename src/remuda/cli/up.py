"""Composition root of `remuda up`: a frontend, its bus, and a worker of its own on this machine."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda.cli.banner import show_up
from remuda.cli.frontend import RunningFrontend, admission_policy, running_frontend
from remuda.cli.own_worker import OwnWorker
from remuda.cli.running import HeldBack, Stop, background, log_as, log_style, run_until_signal, settle
from remuda.cli.settings import UpSettings, WorkerSettings
from remuda.core import limits
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import RemudaError
from remuda.core.ids import MachineId
from remuda.core.settings import Resolved, as_environment
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


def run(resolved: Resolved[UpSettings]) -> int:
    """`remuda up`: serve until told to stop."""
    # At a terminal the banner comes first, and warnings below it.
    shown = HeldBack(sys.stderr)
    if not sys.stderr.isatty():
        shown.release()
    log_as(resolved, shown)
    try:
        return run_until_signal(partial(_up, resolved, shown))
    finally:
        shown.release()


async def _up(resolved: Resolved[UpSettings], shown: HeldBack, stop: Stop) -> int:
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
    async with (
        background(partial(_release_later, shown)),
        running_frontend(settings, policy, starts_worker=not folder.is_held_by("worker")) as frontend,
    ):
        worker = OwnWorker(
            (sys.executable, "-m", "remuda", "worker"),
            _worker_environment(resolved, frontend, os.environ),
            folder,
            tell_fleet=frontend.own_worker_ended,
            show=shown.line,
        )
        async with background(worker.run, partial(_show_when_ready, frontend, settings, own, worker, shown)):
            settle()
            await stop.wait()
    return 0


async def _release_later(
    shown: HeldBack, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """A start that takes this long has a reason, which is among what was held back."""
    task_status.started()
    await anyio.sleep(limits.WARNINGS_HELD_S)
    shown.release()


async def _show_when_ready(
    frontend: RunningFrontend,
    settings: UpSettings,
    own: MachineId,
    worker: OwnWorker,
    shown: HeldBack,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    found = await _own_node(frontend.registry, own, worker)
    show_up(frontend, settings, found, worker.trouble)
    shown.release()


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
