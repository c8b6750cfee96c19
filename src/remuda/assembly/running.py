"""How a process of ours runs: its memory and environment closed to other programs of the same user, one
event loop, signals that end it in order, tasks that end in reverse.
"""

import ctypes
import gc
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, Protocol, TextIO, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.assembly.settings import CommonSettings, FrontendSettings, WorkerSettings
from remuda.core.errors import RemudaError
from remuda.core.log import configure
from remuda.core.settings import ResolvedSettings, described
from remuda.host.folder import DataFolder

log = structlog.get_logger()

_PR_SET_DUMPABLE: Final = 4


def keep_private() -> bool:
    """Close this process's files in /proc, its environment and memory among them, to all but root, and forbid
    tracing it. False where the system cannot: only Linux can.

    Backends run as the user that workers run as; what a process was started with, and what it holds, is not
    theirs to read. Programs that it starts are not affected. The price is that there are no core dumps.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


S = TypeVar("S", bound=CommonSettings)
EXIT_INTERRUPTED = 130
_NEW_OBJECTS = 20_000  # After so many more the garbage collector looks at them; Python's own number is 700.
_ECHO_S = 0.5  # A wrapper such as timeout(1) passes on a signal that the whole group was sent already.


def log_style(resolved: ResolvedSettings[S]) -> tuple[str, Literal["console", "json"]]:
    """The level and form of log lines. Where the terminal is left to choose: lines for people, and warnings
    only, since what matters is printed in words; JSON elsewhere."""
    settings, at_terminal = resolved.values, sys.stderr.isatty()
    quiet = at_terminal and resolved.origins["log_level"] == "default"
    style = settings.log_format
    return (
        "warning" if quiet else settings.log_level,
        ("console" if at_terminal else "json") if style == "auto" else style,
    )


class HeldBack(io.StringIO):
    """Lines for a terminal, kept until what belongs above them was shown."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._released = False

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._released else super().write(text)

    def line(self, text: str) -> None:
        self.write(f"{text}\n")
        self.flush()

    def flush(self) -> None:
        if self._released:
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def release(self) -> None:
        """Show what was kept; what comes from now on is shown as it comes."""
        if not self._released:
            self._released = True
            self._stream.write(self.getvalue())
            self._stream.flush()


def log_as(resolved: ResolvedSettings[S], stream: TextIO | None = None) -> None:
    """Log as the settings say, and name each setting that is given and has no effect."""
    configure(*log_style(resolved), stream)
    for item in described(type(resolved.values)):
        if item.setting.no_effect_yet and resolved.origins[item.field] != "default":
            log.warning("setting_has_no_effect_yet", setting=item.field, until=item.setting.no_effect_yet)
    settings = resolved.values
    if isinstance(settings, FrontendSettings | WorkerSettings):
        _look_for_models(settings.models_path, DataFolder(settings.data_dir))


def _look_for_models(chosen: Path | None, folder: DataFolder) -> None:
    """Said once: the worker of `remuda up` begins while its frontend holds the folder."""
    if chosen is not None and not chosen.is_dir() and not folder.is_held_by("frontend"):
        log.warning(
            "models_folder_missing",
            reason=f"{chosen} does not exist, so no models are found in it",
            hint="create it, or correct --models-path",
        )


class Runner(Protocol):
    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


@asynccontextmanager
async def background(*runners: Runner) -> AsyncIterator[None]:
    """Each runner is ready when the block begins and gone when it ends; one that fails ends the block."""
    async with anyio.create_task_group() as tasks:
        for runner in runners:
            await tasks.start(runner)
        yield
        tasks.cancel_scope.cancel()


class Stop:
    """The wish to end. A running process waits for it and then unwinds, inner parts first; while it is still
    starting up, or not waiting, it is cancelled instead."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._wanted = anyio.Event()
        self._awaited = False

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def ask(self) -> None:
        self._wanted.set()
        if not self._awaited:
            self.scope.cancel()

    async def wait(self) -> None:
        self._awaited = True
        await self._wanted.wait()


def settle() -> None:
    """For a process that has started: what it is made of now will stay, and need not be looked at by the
    garbage collector, not even once (of two hundred thousand objects two thousand are garbage by then). Of
    what comes, requests leave no cycles behind: it looks less often."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


def run_until_signal(main: Callable[[Stop], Awaitable[int]]) -> int:
    """Run `main`. The first SIGTERM or SIGINT asks it to stop; the second ends the process at once. A
    RemudaError or OSError raised inside task groups reaches the caller by itself."""
    keep_private()
    try:
        return anyio.run(_stopped_by_signal, main, backend_options={"use_uvloop": sys.platform != "win32"})
    except BaseExceptionGroup as group:
        expected = _single(group)
        if expected is None:
            raise
        raise expected from group


async def _stopped_by_signal(main: Callable[[Stop], Awaitable[int]]) -> int:
    code, stop = 0, Stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_listen_for_signals, stop)
        with stop.scope:
            code = await main(stop)
        tasks.cancel_scope.cancel()
    return code


async def _listen_for_signals(stop: Stop) -> None:
    asked_at = 0.0
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            name = signal.Signals(number).name
            if not stop.wanted:
                log.info("stopping", signal=name)
                stop.ask()
                asked_at = anyio.current_time()
            elif anyio.current_time() - asked_at > _ECHO_S:
                log.warning("stopped_at_once", signal=name)
                os._exit(EXIT_INTERRUPTED)


def _single(group: BaseExceptionGroup[BaseException]) -> RemudaError | OSError | None:
    """The expected error inside, where there is nothing but expected ones: ours, and what the operating
    system refused, such as writing to a full disk."""
    found: list[RemudaError | OSError] = []
    for error in group.exceptions:
        inner = _single(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(inner, RemudaError | OSError):
            return None
        found.append(inner)
    return found[0]
