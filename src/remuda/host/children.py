"""Child processes: run one within a block, or keep one alive by policy. None outlives its scope."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.abc
import structlog

from remuda.core.errors import ChildFailed
from remuda.host.process_family import tied
from remuda.host.restarts import GiveUp, Restart, RestartPolicy, after_exit

log = structlog.get_logger(__name__)

_LINE_BYTES_MAX = 16 * 1024
_READ_BYTES = 64 * 1024
_REAP_LIMIT_S = 5.0
_GROUP_GONE_LIMIT_S = 1.0
_GROUP_POLL_S = 0.01
_SUCCESS = "exit code 0"

OnStart = Callable[["Child"], Awaitable[None]]
OnEnd = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run. `env` is the whole environment: a child inherits nothing.

    `output` is where both its streams go: a file (appended), a function called with each line, or nowhere.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None
    output: Path | Callable[[str], None] | None = None
    grace: timedelta = timedelta(seconds=5)
    die_with_parent: bool = True
    """Killed by the kernel when the thread that started it ends, however that ends. Elsewhere than on Linux
    there is no such thing, and a killed parent leaves the child behind."""


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    pid: int
    _process: anyio.abc.Process

    async def wait(self) -> int:
        """The exit code; minus the signal's number when a signal ended it."""
        return await self._process.wait()


@asynccontextmanager
async def running(spec: LaunchSpec) -> AsyncIterator[Child]:
    """The process and its whole group are gone when this block ends, whatever ends it.

    Raises ChildFailed when the program cannot be started at all.
    """
    with _output(spec.output) as sink:
        process = await _start(spec, sink)
        try:
            yield Child(spec.name, process.pid, process)
        finally:
            await _stop(process, spec)


async def supervise(
    spec: LaunchSpec,
    policy: RestartPolicy,
    *,
    on_start: OnStart | None = None,
    on_end: OnEnd | None = None,
    ends_with_success: bool = False,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the process alive by policy, and raise ChildFailed when policy gives up.

    `ends_with_success`: exit code 0 means that it was asked to end, and it is not started again.

    `on_start` runs in each life as soon as the process exists, and is cancelled when the process ends;
    ChildFailed raised in it ends that life. This reports started once the first `on_start` is through.
    `on_end` gets how each life ended unasked, before the next one begins.
    """
    short_lives = 0
    reported = False

    async def begin(child: Child) -> None:
        nonlocal reported
        if on_start is not None:
            await on_start(child)
        if not reported:
            reported = True
            task_status.started()

    while True:
        began = anyio.current_time()
        async with running(spec) as child:
            log.info("child_started", child=spec.name, pid=child.pid)
            ending = await _one_life(child, begin)
        if ending == _SUCCESS and ends_with_success:
            log.info("child_ended", child=spec.name)
            return
        lived = timedelta(seconds=anyio.current_time() - began)
        if on_end is not None:
            await on_end(ending)
        short_lives = await _before_restart(spec.name, ending, after_exit(policy, short_lives, lived))


async def _before_restart(name: str, ending: str, decision: Restart | GiveUp) -> int:
    """Wait as policy says, and answer how many short lives there were; or raise ChildFailed."""
    match decision:
        case GiveUp(reason):
            log.error("child_given_up", child=name, ending=ending, reason=reason)
            raise ChildFailed(f"{name} does not stay up ({ending}): {reason}")
        case Restart(delay, short_lives):
            log.warning("child_exited", child=name, ending=ending, restart_in_s=delay.total_seconds())
            await anyio.sleep(delay.total_seconds())
            return short_lives


async def _one_life(child: Child, begin: OnStart) -> str:
    """How this life ended, in words."""
    failures: list[ChildFailed] = []

    async def begin_or_end() -> None:
        try:
            await begin(child)
        except ChildFailed as failure:
            failures.append(failure)
            tasks.cancel_scope.cancel()

    code: int | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin_or_end)
        code = await child.wait()
        tasks.cancel_scope.cancel()
    return failures[0].message if failures else _in_words(code)


def _in_words(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


async def _start(spec: LaunchSpec, sink: int) -> anyio.abc.Process:
    argv = _command(spec)
    with anyio.CancelScope(shield=True):  # Cancelled half-way, the process would have no owner.
        try:
            process = await anyio.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=spec.cwd,
                env=spec.env,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildFailed(f"{spec.name} cannot be started: {error.strerror}") from error
    return process


def _command(spec: LaunchSpec) -> list[str]:
    program = shutil.which(spec.argv[0], path=spec.env.get("PATH"))
    if program is None:
        raise ChildFailed(f"{spec.name} cannot be started: there is no program {spec.argv[0]}")
    argv = [os.path.abspath(program), *spec.argv[1:]]
    return tied(argv) if spec.die_with_parent else argv


async def _stop(process: anyio.abc.Process, spec: LaunchSpec) -> None:
    with anyio.CancelScope(shield=True):  # Being cancelled is when cleanup matters most.
        _signal_group(process.pid, signal.SIGTERM)
        with anyio.move_on_after(spec.grace.total_seconds()):
            await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        with anyio.move_on_after(_REAP_LIMIT_S) as waiting:
            await process.wait()
        if waiting.cancelled_caught:  # Stuck in the kernel, on a dead disk or driver: not ours to solve.
            log.error("child_not_reaped", child=spec.name, pid=process.pid)
        with anyio.move_on_after(_GROUP_GONE_LIMIT_S):
            while _signal_group(process.pid, 0):  # noqa: ASYNC110 - grandchildren cannot be awaited
                await anyio.sleep(_GROUP_POLL_S)


def _signal_group(group: int, number: int) -> bool:
    """Whether the group still had a member to hear it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says this of a group that holds only zombies.
        return False
    return True


@contextmanager
def _output(output: Path | Callable[[str], None] | None) -> Iterator[int]:
    """A descriptor for the child to write to; what it wrote has been passed on when the block ends."""
    match output:
        case None:
            yield subprocess.DEVNULL
        case Path():
            with output.open("ab") as file:
                yield file.fileno()
        case _:
            lines = _Lines(output)
            try:
                yield lines.sink
            finally:
                lines.close()


class _Lines:
    """A pipe whose lines go to a function.

    The event loop reads it: a task would need a task group around the caller's block, and that would wrap
    every exception of the block in an exception group.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""
        self._source, self.sink = os.pipe()
        os.set_blocking(self._source, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._source, self._read)

    def close(self) -> None:
        os.close(self.sink)
        while self._read():
            pass
        self._loop.remove_reader(self._source)
        os.close(self._source)
        if self._rest:
            self._pass_on(self._rest)

    def _read(self) -> bool:
        try:
            read = os.read(self._source, _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > _LINE_BYTES_MAX:
            self._pass_on(self._rest)
            self._rest = b""
        return bool(read)

    def _pass_on(self, line: bytes) -> None:
        try:
            self._take(line[:_LINE_BYTES_MAX].decode(errors="replace").rstrip("\r"))
        except Exception:  # On a full disk, for one: that costs the line, not the child.
            log.exception("child_line_lost")
