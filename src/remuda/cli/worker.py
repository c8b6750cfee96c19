"""`remuda worker`: serve until stopped, by signal or by the frontend; on a terminal, say each step.
And `remuda join`: become a node of a frontend, and remember which once it has accepted this machine.
"""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import click

from remuda.assembly.running import EXIT_INTERRUPTED, Stop, log_as, run_until_signal
from remuda.assembly.settings import WorkerSettings
from remuda.assembly.settings.shared import registration_token
from remuda.assembly.worker import run_worker
from remuda.cli import service_unit
from remuda.cli.service_unit import Service
from remuda.core import limits
from remuda.core.errors import FrontendUnreachable, RemudaError
from remuda.core.hints import pasted
from remuda.core.settings import ResolvedSettings
from remuda.host.folder import DataFolder, write_json, write_private
from remuda.worker.enrolment import WorkerPhase, WorkerState
from remuda.worker.identity import node_name
from remuda.worker.service import Worker


def run_worker_command(resolved: ResolvedSettings[WorkerSettings]) -> int:
    log_as(resolved)
    return run_until_signal(partial(work, resolved.values))


async def work(
    settings: WorkerSettings, stop: Stop, *, when_registered: Callable[[Worker], None] | None = None
) -> int:
    """`stop` is not waited for: a worker that is cancelled stops in order."""

    def tell(state: WorkerState) -> None:
        if sys.stdout.isatty() and not is_logged(state, settings.log_level):  # Elsewhere the log says it.
            click.echo(in_words(state, settings))

    await run_worker(settings, on_state=tell, when_registered=when_registered)
    return 0


def is_logged(state: WorkerState, log_level: str) -> bool:
    """Whether the log tells it on a terminal, too: there it begins at warnings, unless set otherwise."""
    registers = state.phase in (WorkerPhase.REGISTERING, WorkerPhase.WAITING_FOR_APPROVAL)
    failed = registers and bool(state.reason)
    return failed and log_level != "error"


def in_words(state: WorkerState, settings: WorkerSettings) -> str:
    name = node_name(settings.node_name, socket.gethostname(), os.getpid())
    reason = f": {state.reason}" if state.reason else ""
    match state.phase:
        case WorkerPhase.REGISTERING:
            return f"Registering with {settings.register_to}{reason}"
        case WorkerPhase.WAITING_FOR_APPROVAL:
            return f"Waiting for approval{reason}. On the frontend: remuda nodes approve {pasted(name)}"
        case WorkerPhase.CONNECTING:
            return f"Connecting to the bus{reason}"
        case WorkerPhase.READY:
            return f"Ready: this machine is node {name}. Ctrl-C stops it; remuda worker resumes it."
        case WorkerPhase.STOPPING:
            return f"Stopping{reason}"


def run_join(resolved: ResolvedSettings[WorkerSettings], planned: Service | None) -> int:
    """Stays in the foreground, unless the planned service is to do the work. Nothing is kept of an attempt
    that the frontend refuses."""
    log_as(resolved)
    folder = DataFolder(resolved.values.data_dir)
    folder.prepare()
    settings = to_remember(resolved)
    if planned is not None:
        return _join_as_service(resolved.values, folder, settings, planned)

    registered = False

    def remember(_: Worker) -> None:
        nonlocal registered
        registered = True
        write_json(folder.joined, settings)

    code = run_until_signal(partial(work, resolved.values, when_registered=remember))
    return code if registered else EXIT_INTERRUPTED


def _join_as_service(
    values: WorkerSettings, folder: DataFolder, settings: dict[str, object], planned: Service
) -> int:
    """Register once in the foreground: a service would fail unseen."""
    with service_unit.paused(planned):
        attempt = _Attempt(values)
        run_until_signal(attempt.run)
        if not attempt.accepted:
            return EXIT_INTERRUPTED
        former = folder.joined.read_text() if folder.joined.exists() else None
        write_json(folder.joined, settings)
        try:
            service_unit.install(planned)
        except RemudaError:
            if former is None:
                folder.joined.unlink()
            else:
                write_private(folder.joined, former)
            raise
    click.echo(f"{planned.name} is installed and started.")
    for note in planned.notes:
        click.echo(f"  {note}")
    return 0


class _Attempt:
    """Registers, and stops in order as soon as the frontend has accepted this machine."""

    def __init__(self, values: WorkerSettings) -> None:
        self.accepted = False
        self._values = values

    async def run(self, stop: Stop) -> int:
        with anyio.move_on_after(limits.JOIN_S) as scope:
            await work(self._values, stop, when_registered=self._accept)
        if scope.cancelled_caught and not self.accepted:
            raise FrontendUnreachable(
                f"{self._values.register_to} did not register this machine within {limits.JOIN_S:.0f} s",
                hint="check the address and that the frontend runs; nothing was installed",
            )
        return 0

    def _accept(self, worker: Worker) -> None:
        self.accepted = True
        worker.stop("the service takes over")


def to_remember(resolved: ResolvedSettings[WorkerSettings]) -> dict[str, object]:
    """What was given, by whatever means, so that `remuda worker` alone resumes, wherever it is started; a
    token file's content too, for the file may have been meant for this once."""
    once = ("data_dir", "registration_token_file")
    given = {field: value for field, value in resolved.given.items() if field not in once}
    for field in given:
        value = getattr(resolved.values, field)
        if isinstance(value, Path):
            given[field] = str(value.absolute())
    token = registration_token(resolved.values)
    return given if token is None else {**given, "registration_token": token.get_secret_value()}
