"""`remuda worker`: serve until told to stop, by signal or by the frontend; on a terminal, say each step."""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial

import click

from remuda.assembly.running import Stop, log_as, run_until_signal
from remuda.assembly.settings import WorkerSettings
from remuda.assembly.worker import run_worker
from remuda.core.hints import pasted
from remuda.core.settings import ResolvedSettings
from remuda.worker.enrolment import WorkerPhase, WorkerState
from remuda.worker.identity import node_name
from remuda.worker.service import Worker


def run(resolved: ResolvedSettings[WorkerSettings]) -> int:
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
    """Whether the log tells it on a terminal, too: there it begins at warnings, unless told otherwise."""
    failed = state.phase is WorkerPhase.REGISTERING and bool(state.reason)
    return failed and log_level != "error"


def in_words(state: WorkerState, settings: WorkerSettings) -> str:
    name = node_name(settings.node_name, socket.gethostname(), os.getpid())
    reason = f": {state.reason}" if state.reason else ""
    match state.phase:
        case WorkerPhase.REGISTERING:
            return f"Registering with {settings.register_to}{reason}"
        case WorkerPhase.WAITING_FOR_APPROVAL:
            return f"Waiting for approval. On the frontend: remuda nodes approve {pasted(name)}{reason}"
        case WorkerPhase.CONNECTING:
            return f"Connecting to the bus{reason}"
        case WorkerPhase.READY:
            return f"Ready: this machine is node {name}. Ctrl-C stops it; remuda worker resumes it.{reason}"
        case WorkerPhase.STOPPING:
            return f"Stopping{reason}"
