"""This machine, as the supervisor of backends sees it: real processes, ports and folders."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread
import psutil
import structlog

from remuda.core.errors import ChildFailed, Misconfigured
from remuda.core.ids import BootId
from remuda.host import descendants
from remuda.host.descendants import Identity, Mark, Seen
from remuda.host.ports import listen, listeners, sockets_of
from remuda.host.process_family import ProcessFamily, tied
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.logs import Logs, Output
from remuda.worker.processes.model import ProcessCommand
from remuda.worker.processes.ports import PortListener

_GROUPS = re.compile(r"^[0-9]+:([^:]*):/(.*)$", re.MULTILINE)
_COUNT = re.compile(r"^oom_kill ([0-9]{1,18})$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Out-of-memory kills so far in this process's control group, or else on the whole machine; None when
    neither can be told. Backends run in the worker's own group."""
    for file in (*_of_own_group(root), root / "proc/vmstat"):
        if count := _COUNT.search(_text(file)):
            return int(count[1])
    return None


def _of_own_group(root: Path) -> Iterator[Path]:
    for controllers, group in _GROUPS.findall(_text(root / "proc/self/cgroup")):
        if not controllers:
            yield root / "sys/fs/cgroup" / group / "memory.events"
        elif "memory" in controllers.split(","):  # The older hierarchy.
            yield root / "sys/fs/cgroup/memory" / group / "memory.oom_control"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


log = structlog.get_logger(__name__)

_LOOK_LIMIT_S = 2.0  # Reading about a process that hangs in the kernel may hang as well.
_KILL_LIMIT_S = 5.0  # What SIGKILL does not end in this time hangs in the kernel: not ours to solve.


class Guard(Protocol):
    """Who ends a process when this one is no longer there to do it."""

    def watch(self, leader: Identity) -> None: ...

    def forget(self, leader: Identity) -> None: ...


class LocalMachine:
    """A `Machine`. `owner` names the data folder: it and `boot` mark every process started here.
    `niceness`: how far they give way to others."""

    def __init__(self, owner: str, boot: BootId, logs: Logs, guard: Guard, *, niceness: int = 0) -> None:
        self._owner = owner
        self._boot = boot
        self._logs = logs
        self._guard = guard
        self._niceness = niceness

    async def start(self, key: ProcessKey, instance: str, command: ProcessCommand) -> "LocalProcess":
        """Its output goes to the logs under `key`. Raises ChildFailed when it cannot be started at all."""
        argv = tied(_argv(command), niceness=self._niceness)
        mark = Mark(self._owner, self._boot, instance)
        try:
            output = Output(self._logs.open(key, instance))
            process = await _open(argv, command, mark, output)
        except OSError as error:
            raise ChildFailed(f"{command.argv[0]} cannot be started: {error.strerror}") from error
        leader = Identity(process.pid, descendants.started(process.pid) or "over")
        self._guard.watch(leader)
        return LocalProcess(process, leader, mark, output, self._guard.forget)

    def port_free(self, port: int) -> bool:
        """Whether a process could listen on it now."""
        try:
            # Elsewhere than on Linux one may listen on all addresses beside another on loopback.
            for host in ("0.0.0.0", "127.0.0.1"):
                listen(host, port).close()
        except Misconfigured:
            return False
        return True

    def folder_stamp(self, folder: Path) -> str:
        """Changes when the folder is replaced by another of the same name; empty when there is none."""
        try:
            status = folder.stat()
        except OSError:
            return ""
        return f"{status.st_dev}:{status.st_ino}"


class LocalProcess:
    """A `Process`. It is a session of its own, and what left that session is still found by its mark."""

    def __init__(
        self,
        process: anyio.abc.Process,
        leader: Identity,
        mark: Mark,
        output: Output,
        on_gone: Callable[[Identity], None],
    ) -> None:
        self._process = process
        self._leader = leader
        self._mark = mark
        self._output = output
        self._on_gone = on_gone
        self._kin = ProcessFamily({leader}, mark.__eq__)
        self._ending = anyio.Lock()
        self._gone = False
        self._oom_kills = oom_kills()

    @property
    def pid(self) -> int:
        return self._leader.pid

    async def wait(self) -> int:
        """The exit code of the process itself; minus the signal's number when a signal ended it."""
        code = await self._process.wait()
        self._output.finish()
        return code

    def stderr_tail(self, lines: int) -> Sequence[str]:
        """The last lines of this process, not of one before it under the same key."""
        return self._output.tail(lines)

    def oom_killed(self) -> bool | None:
        """Whether the kernel killed something for lack of memory since this process started."""
        kills = oom_kills()
        return None if kills is None or self._oom_kills is None else kills > self._oom_kills

    async def listener_on(self, port: int) -> PortListener:
        """Which process has this port, on which a connection was just accepted."""
        # In a thread: all connections of this machine are read through, and some have thousands.
        return await anyio.to_thread.run_sync(self._listener_on, port, abandon_on_cancel=True)

    def _listener_on(self, port: int) -> PortListener:
        found = listeners(port)
        if found is None:
            ports = self.listening()
            return PortListener.OURS if ports is None or port in ports else PortListener.OTHERS
        try:
            foreign = found - self._sockets_among(found)
        except OSError:
            return PortListener.OURS
        # Looked at twice: what is closed meanwhile has no owner that could be found.
        if foreign & (listeners(port) or frozenset()):
            return PortListener.OTHERS
        return PortListener.OURS if found - foreign else PortListener.NONE

    def _sockets_among(self, wanted: frozenset[int]) -> frozenset[int]:
        """Those of it and of all that it started. OSError when that is not ours to know."""
        sockets = frozenset[int]()
        with suppress(OSError):  # A leader that is a zombie hides them.
            sockets = sockets_of(self.pid)
        if wanted <= sockets:  # Mostly the leader listens, which saves a look at every process there is.
            return sockets
        return sockets.union(*(sockets_of(seen.pid) for seen in self._kin.present() if not seen.zombie))

    def listening(self) -> frozenset[int] | None:
        """The ports that it and those it started listen on; None when that cannot be told."""
        ports = frozenset[int]()
        try:
            for seen in self._kin.present():
                ports |= _listening(seen.pid)
        except psutil.Error:
            return None
        return ports

    async def end(self, grace: timedelta) -> bool:
        """SIGTERM to all of it, SIGKILL to what is left after the grace; whether nothing is left then.

        Bounded, and seen through when cancelled. Later callers wait for the first one's outcome.
        """
        with anyio.CancelScope(shield=True):
            async with self._ending:
                self._gone = self._gone or await self._end(grace)
        return self._gone

    async def _end(self, grace: timedelta) -> bool:
        family: list[Seen] = []
        with anyio.move_on_after(_LOOK_LIMIT_S):
            family = await self._kin.alive()
        self._ask_to_end(family)
        with anyio.move_on_after(grace.total_seconds()):
            await self._process.wait()
            await self._kin.until_gone()
        with anyio.move_on_after(_KILL_LIMIT_S):
            self._signal_group(signal.SIGKILL)
            await self._kin.kill()
            await self.wait()
            self._on_gone(self._leader)
            return True
        log.error("process_not_ended", pid=self.pid, instance=self._mark.instance)
        return False

    def _ask_to_end(self, family: list[Seen]) -> None:
        for number in (signal.SIGTERM, signal.SIGCONT):  # Suspended, it would not hear the first.
            by_group = self._signal_group(number)
            for seen in family:
                # Once each: to many programs a second SIGTERM means at once.
                if not (by_group and seen.group == self.pid):
                    descendants.send(seen.identity, number)

    def _signal_group(self, number: signal.Signals) -> bool:
        """Whether it could be: once its leader is reaped, the group's number may be reused."""
        if self._process.returncode is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies.
            os.killpg(self.pid, number)
            return True
        return False


async def _open(argv: list[str], command: ProcessCommand, mark: Mark, output: Output) -> anyio.abc.Process:
    with anyio.CancelScope(shield=True):  # Cancelled half-way, the process would have no owner.
        try:
            process = await anyio.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output.stdout,
                stderr=output.stderr,
                cwd=command.cwd,
                env={**command.env, **mark.environ()},
                start_new_session=True,
            )
        except OSError:
            output.finish()
            raise
    output.handed_over()
    return process


def _listening(pid: int) -> frozenset[int]:
    """None of one that is gone. Raises psutil.Error when it is not ours to know."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return frozenset()
    return frozenset(held.laddr.port for held in connections if held.status == psutil.CONN_LISTEN)


def _argv(command: ProcessCommand) -> list[str]:
    """With the program's absolute path: relative to the working folder, or found on its PATH."""
    program = command.argv[0]
    if os.sep in program:
        found, place = shutil.which(command.cwd / program), f"in {command.cwd}"
    else:
        found, place = shutil.which(program, path=command.env.get("PATH")), "on its PATH"
    if found is None:
        raise ChildFailed(f"{program} cannot be started: there is no such executable file {place}")
    return [os.path.abspath(found), *command.argv[1:]]
