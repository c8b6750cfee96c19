"""`remuda up`: serve until told to stop. At a terminal the banner comes first, and warnings below it."""

import sys
from functools import partial

import anyio
from anyio.abc import TaskStatus

from remuda.assembly.running import HeldBack, Stop, background, log_as, run_until_signal, settle
from remuda.assembly.settings import UpSettings
from remuda.assembly.up import RunningUp, running_up
from remuda.cli.banner import show_up
from remuda.core import limits
from remuda.core.settings import ResolvedSettings


def run(resolved: ResolvedSettings[UpSettings]) -> int:
    shown = HeldBack(sys.stderr)
    if not sys.stderr.isatty():
        shown.release()
    log_as(resolved, shown)
    try:
        return run_until_signal(partial(_up, resolved, shown))
    finally:
        shown.release()


async def _up(resolved: ResolvedSettings[UpSettings], shown: HeldBack, stop: Stop) -> int:
    async with (
        background(partial(_release_later, shown)),
        running_up(resolved, shown.line) as running,
        background(partial(_show_when_ready, running, resolved.values, shown)),
    ):
        settle()
        await stop.wait()
    return 0


async def _release_later(
    shown: HeldBack, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """When a start takes this long, the warnings held back say why."""
    task_status.started()
    await anyio.sleep(limits.WARNINGS_HELD_S)
    shown.release()


async def _show_when_ready(
    running: RunningUp,
    settings: UpSettings,
    shown: HeldBack,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    node = await running.own_node()
    show_up(running.frontend, settings, node, running.worker.trouble)
    shown.release()
