"""`remuda up` and `remuda frontend`: serve until stopped; and what a person sees when a frontend has
started: where things are, and the one thing to do next. At a terminal that banner comes first, and warnings
below it.
"""

import sys
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

import anyio
import click
from anyio.abc import TaskStatus

from remuda import __version__
from remuda.assembly.addresses import known_by_name_only
from remuda.assembly.frontend import RunningFrontend, admission_policy, running_frontend
from remuda.assembly.running import HeldBack, Stop, background, log_as, run_until_signal, settle
from remuda.assembly.settings import FrontendSettings, UpSettings
from remuda.assembly.up import RunningUp, running_up
from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.hints import pasted
from remuda.core.settings import ResolvedSettings, described
from remuda.fleet.health import Standing
from remuda.fleet.model import Resources
from remuda.host.joining import join_line, own_wheel_name, uvx_line

S = TypeVar("S", bound=FrontendSettings)
_GIB = 1 << 30
_CA_FILE = "ca.pem"


def repeated(command: str, resolved: ResolvedSettings[S]) -> str:
    """The command with the flags that it was given; without secrets, and without where it is to listen."""
    words = [command]
    for item in described(type(resolved.values)):
        value = resolved.given.get(item.field)
        if resolved.origins[item.field] != item.flag or item.secret or item.field in ("lan", "host"):
            continue
        if isinstance(value, bool):
            words.append(item.flag if value else item.flag.replace("--", "--no-", 1))
        else:
            words += [item.flag, pasted(str(value))]
    return " ".join(words)


def show_frontend(
    frontend: RunningFrontend, settings: FrontendSettings, command: str = "remuda frontend"
) -> None:
    _show(
        [
            f"Remuda {__version__} frontend is {_ready(frontend)}",
            "",
            *_places(frontend, settings),
            *_next(frontend, settings, command),
        ]
    )


def print_banner(
    frontend: RunningFrontend,
    settings: FrontendSettings,
    own: Standing | None,
    trouble: str = "",
    command: str = "remuda up",
    starter: str = "",
) -> None:
    """`trouble`: why this machine's worker does not run; empty when it does, or is only slow. `starter`: the
    model that came with this start, and how far it is."""
    _show(
        [
            f"Remuda {__version__} is {_ready(frontend, trouble)}",
            "",
            *_places(frontend, settings),
            f"  This node   {f'its worker does not run: {trouble}' if trouble else _node(own)}",
            *([f"  Model       {starter}"] if starter else []),
            *_next(frontend, settings, command),
        ]
    )


def _ready(frontend: RunningFrontend, worker_trouble: str = "") -> str:
    if frontend.why_unready:
        why = frontend.why_unready
        return f"running, but not ready: {why}. It keeps trying; remuda doctor says more."
    if worker_trouble:
        return "running, but its worker is not. It is started again and again; remuda doctor says more."
    return "up."


def _places(frontend: RunningFrontend, settings: FrontendSettings) -> Iterable[str]:
    yield f"  API         {frontend.url}"
    yield f"  Data        {settings.data_dir}"


def _node(own: Standing | None) -> str:
    if own is None:
        return "its worker has not registered yet; see remuda nodes"
    if own.node.report is None:  # It reports once it is connected.
        return f"{own.node.name}: its worker is not connected to the bus yet; remuda doctor says why"
    why = f" ({'; '.join(own.reasons)})" if own.reasons else ""
    return f"{own.node.name}: {own.status}{why}, {_hardware(own.node.resources)}"


def _hardware(resources: Resources) -> str:
    ram = f"{resources.total_ram / _GIB:.0f} GiB RAM"
    if not resources.gpu_vendor:
        return f"{ram}, no GPU"
    return f"{ram}, {resources.gpu_vendor} GPU with {resources.total_vram / _GIB:.0f} GiB"


def _next(frontend: RunningFrontend, settings: FrontendSettings, command: str) -> Iterable[str]:
    yield ""
    if not frontend.open_to_network:
        yield f"  Only this machine can reach it. To let other machines in: {command} --lan"
        return
    if frontend.first_admin_key:
        yield "  Admin key, shown this once (remuda keys create NAME --scope admin makes another):"
        yield f"    {frontend.first_admin_key}"
        yield ""
    if frontend.token is None:
        yield "  Anyone who can connect may join: --insecure-no-token is set."
        return
    if known_by_name_only(settings):
        yield "  No network address of this machine was found, so its name is used here. If other machines do"
        yield "  not know that name, start with --public-url http://ADDRESS:PORT"
    token = frontend.token.get_secret_value()
    yield "  To add a machine, run on it (needs Python 3.11 or newer and a Python package index):"
    yield f"    {join_line(frontend.url, token)}"
    yield "  or, where uv is installed:"
    yield f"    {uvx_line(frontend.url, token, own_wheel_name())}"
    if frontend.url.startswith("https:"):
        yield f"  or, where the certificate is not trusted, with its authority's file as {_CA_FILE}:"
        yield f"    {join_line(frontend.url, token, ca=_CA_FILE)}"


def _show(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines) + "\n")


def run_frontend(resolved: ResolvedSettings[FrontendSettings]) -> int:
    log_as(resolved)
    return run_until_signal(partial(_serve, resolved))


async def _serve(resolved: ResolvedSettings[FrontendSettings], stop: Stop) -> int:
    settings = resolved.values
    policy = admission_policy(settings, otherwise=False)
    async with running_frontend(settings, policy, origins=resolved.origins) as frontend:
        show_frontend(frontend, settings, repeated("remuda frontend", resolved))
        settle()
        await stop.wait()
    return 0


def run_up(resolved: ResolvedSettings[UpSettings]) -> int:
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
        background(partial(_show_when_ready, running, resolved, shown)),
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
    resolved: ResolvedSettings[UpSettings],
    shown: HeldBack,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    node = await running.own_node()
    command = repeated("remuda up", resolved)
    starter = await _starter(running)
    print_banner(running.frontend, resolved.values, node, running.worker.trouble, command, starter)
    shown.release()


async def _starter(running: RunningUp) -> str:
    if not running.starter:
        return ""
    try:
        return f"{running.starter} {await running.frontend.starter.state()}"
    except RemudaError:  # The store is away: unknown, so not printed.
        return ""
