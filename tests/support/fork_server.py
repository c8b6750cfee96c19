"""Real processes without the cost of their imports.

Importing a frontend is most of what starting one costs, and the suite starts hundreds. So a process that has
imported everything, and done nothing else, is copied by fork: the copy gets its own session, arguments,
environment and output, and runs the module as `python -m` would. By its parent, signals and exit code, and in
the process table, it is like any other child of the tests. The own worker of a copied `remuda up` is copied,
too. Linux only.

What a new interpreter does at its start (launchers, installed wheels, secrets among the arguments) is tested
with processes that are started in the usual way.
"""

import ctypes
import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn

import anyio
import msgspec

if TYPE_CHECKING:  # The template imports what it copies, and the tests need not.
    from remuda.host.children import LaunchSpec

_ROOTS = (
    "remuda.assembly.up",
    "remuda.assembly.worker",
    "remuda.assembly.frontend",
    "remuda.cli.verbs",
    "uvloop",
)
_ROOT = Path(__file__).parents[2]
_MESSAGE_BYTES = 1 << 17
_TITLE_BYTES = 1 << 14  # Room for the arguments of a copy, and as much for its environment.
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_PR_SET_PDEATHSIG = 1
# Read when an interpreter starts, so a copy would not notice another value.
_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_")


class Order(msgspec.Struct):
    """What a copy is to run. The first word is the module."""

    words: list[str]
    environ: dict[str, str]
    cwd: str


class ForkedProcess:
    """What `subprocess.Popen` offers, as far as tests use it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        descriptor = os.pidfd_open(self.pid) if self.poll() is None else None
        if descriptor is not None:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(timeout * 1000)
            os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # Until then the number is not given to another process.
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The template process, from its first use to the end of the test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._template: subprocess.Popen[bytes] | None = None
        self._environ = _of_the_interpreter(os.environ)
        self._network = ""

    def prepare(self) -> None:
        """Start the template, if that can be. It imports while others are at work."""
        # The kernel ends what is tied to a thread with it, and only the first one stays to the end.
        first = threading.current_thread() is threading.main_thread()
        if self._channel is None and first and _possible():
            self._channel, self._template = _template()
            self._network = _network()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        stdin: IO[bytes] | None = None,
    ) -> ForkedProcess | None:
        """Run a module with its arguments; None where only a new interpreter can."""
        if self._channel is None or _of_the_interpreter(environ) != self._environ:
            return None
        if _network() != self._network:
            return None
        order = msgspec.json.encode(Order(list(words), dict(environ), os.getcwd()))
        with self._lock, open(os.devnull, "rb") as nothing:
            files = (stdin or nothing, stdout, stderr)
            socket.send_fds(self._channel, [order], [file.fileno() for file in files])
            answer = self._channel.recv(_MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the process that is copied has ended; its error output says why")
        return ForkedProcess(int(answer))


def _possible() -> bool:
    return sys.platform == "linux" and os.uname().machine in _SYS_CLONE


def _network() -> str:
    """Of this thread: some tests have threads in a network of their own."""
    return os.readlink("/proc/thread-self/ns/net")


def _of_the_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_OF_THE_INTERPRETER)}


def _template() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid()), " " * _TITLE_BYTES],
            cwd=_ROOT,
            env={**os.environ, "REMUDA_ROOM": " " * _TITLE_BYTES},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return ours, process


def serve(channel: socket.socket, parent: int) -> None:
    """Copy this process for each order that comes, until the tests are over."""
    _end_with(parent)
    for name in _ROOTS:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a copy of this process would lack its threads"
    gc.collect()
    gc.freeze()
    _serve_copies(channel, parent)


def _serve_copies(channel: socket.socket, parent: int) -> None:
    """The copies are children of that process, which is this one's parent."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
        if not order:
            return
        if _fork_sibling() == 0:
            os.setsid()
            channel.send(str(os.getpid()).encode())
            channel.close()
            _run(msgspec.json.decode(order, type=Order), descriptors, parent)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_sibling() -> int:
    """Like `os.fork`, but the new process is a child of our parent, who can then wait for it."""
    python = ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid: int = python.syscall(_SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("this process could not be copied")
    return pid


def _run(order: Order, descriptors: Sequence[int], parent: int) -> NoReturn:
    _end_with(parent)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.environ)
    time.tzset()
    module, *arguments = order.words
    sys.argv = [module, *arguments]
    sys.path[0] = order.cwd
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    _show(sys.orig_argv, order.environ)
    if order.words[:2] == ["remuda", "up"]:
        _copy_own_workers()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _show(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """In the process table, where the kernel reads what the template was started with."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    ours_first = sorted(environ.items(), key=lambda item: not item[0].startswith("REMUDA_"))
    shown = (words, [f"{name}={value}" for name, value in ours_first])
    for place, texts in zip((45, 47), shown, strict=True):  # arg_start, arg_end, env_start, env_end
        start, end = int(fields[place]), int(fields[place + 1])
        text = b"".join(one.encode() + b"\0" for one in texts)
        ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _copy_own_workers() -> None:
    """Before it has threads, `remuda up` leaves a copy of itself behind from which its workers are copied."""
    from remuda.host import children

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, start, nothing = os.getpid(), children._start, os.open(os.devnull, os.O_RDONLY)
    if os.fork() == 0:
        ours.close()
        os.setsid()
        _end_with(parent)
        _serve_copies(theirs, parent)
        os._exit(0)
    theirs.close()

    async def copied(spec: "LaunchSpec", sink: int) -> object:
        if spec.argv[:3] != (sys.executable, "-m", "remuda"):
            return await start(spec, sink)
        order = Order(list(spec.argv[2:]), dict(spec.env), str(spec.cwd or os.getcwd()))
        socket.send_fds(ours, [msgspec.json.encode(order)], [nothing, sink, sink])
        return _Awaited(int(ours.recv(_MESSAGE_BYTES)))

    setattr(children, "_start", copied)  # noqa: B010 - to the type checker it would be a mistake.


class _Awaited:
    """What `remuda.host.children` uses of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    async def wait(self) -> int:
        if self._code is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            _, status = os.waitpid(self.pid, 0)  # noqa: ASYNC222 - it has ended.
            self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It ended before, so no signal will come.
        os.kill(os.getpid(), signal.SIGKILL)


FORK_SERVER: Final = ForkServer()

if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
