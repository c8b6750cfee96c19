"""Real processes under the supervisor's machine: what they leave behind is nothing."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
import psutil
import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import ChildFailed
from remuda.core.ids import BootId
from remuda.host.descendants import Identity, everyone
from remuda.host.ports import free_port, listen
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.log_store import OutputStream
from remuda.worker.processes.logs import ProcessLogs
from remuda.worker.processes.machine import LocalMachine
from remuda.worker.processes.model import ProcessCommand
from remuda.worker.processes.ports import Machine, PortListener, Process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEY = ProcessKey("model", 0)
SHORT = timedelta(milliseconds=300)
LONG = timedelta(seconds=60)
TICK_S = 0.01
PRELUDE = """
import os, signal, socket, subprocess, sys, time
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
def say(text): os.write(1, f"{text}\\n".encode())  # Also when a signal comes while it does.
def sleep(): time.sleep(600)
"""
DEAF = "signal.signal(15, signal.SIG_IGN); say('deaf'); sleep()"


@dataclass
class Watched:
    """A guard that only takes notes."""

    leaders: set[Identity] = field(default_factory=set)

    def watch(self, leader: Identity) -> None:
        self.leaders.add(leader)

    def forget(self, leader: Identity) -> None:
        self.leaders.remove(leader)


class Yard:
    """A machine with an owner of its own, and short ways to start things on it."""

    def __init__(self, folder: Path) -> None:
        self.owner = SystemEntropy().uuid()
        self.folder = folder
        self.guard = Watched()
        self.logs = ProcessLogs(folder / "logs", SystemClock())
        self.machine: Machine = LocalMachine(self.owner, BootId("boot"), self.logs, self.guard)

    async def start(self, *argv: str, key: ProcessKey = KEY, **env: str) -> Process:
        environ = {"PATH": os.environ["PATH"], **env}
        command = ProcessCommand(argv, self.folder, environ)
        return await self.machine.start(key, SystemEntropy().uuid(), command)

    async def python(self, code: str, key: ProcessKey = KEY) -> Process:
        return await self.start(sys.executable, "-c", PRELUDE + code, key=key)

    def said(self, key: ProcessKey = KEY) -> list[str]:
        return [line.text for line in self.logs.lines(str(key))]

    async def hear(self, what: str) -> None:
        await wait_until(lambda: what in self.said(), what=f"the line {what}")

    async def number(self, name: str) -> int:
        """From a line such as `name=12`."""

        def found() -> str | None:
            return next((line for line in self.said() if line.startswith(f"{name}=")), None)

        return int((await wait_until(found, what=name) or "").partition("=")[2])

    def left(self) -> list[int]:
        """Every process here that carries the owner's mark."""
        return [seen.pid for seen in everyone() if seen.mark and seen.mark.owner == self.owner]


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    made = Yard(tmp_path)
    yield made
    for pid in made.left():
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Starting


async def test_a_process_gets_its_environment_its_mark_and_nothing_else(yard: Yard) -> None:
    code = "print(sorted(set(os.environ) - {'LC_CTYPE'}), os.getcwd(), os.getsid(0) == os.getpid())"
    process = await yard.python(f"{code}; print(sys.stdin.read() == '')")
    assert await process.wait() == 0
    names = ["PATH", "REMUDA_PROCESS", "REMUDA_PROCESS_OWNER"]
    assert yard.said() == [f"{names} {yard.folder} True", "True"]
    assert await process.end(SHORT)


@pytest.mark.skipif(sys.platform != "linux", reason="done by the program that ties a process to us")
async def test_a_process_gives_way_to_others_as_far_as_it_is_told_to(yard: Yard) -> None:
    own = os.nice(0)
    yard.machine = LocalMachine(yard.owner, BootId("boot"), yard.logs, yard.guard, niceness=5)
    await yard.python("print(f'nice={os.nice(0)}', flush=True)")
    assert await yard.number("nice") == min(own + 5, 19)


async def test_a_process_holds_no_files_but_its_three_streams(yard: Yard) -> None:
    process = await yard.start("sh", "-c", "ls /proc/$$/fd")
    assert await process.wait() == 0
    assert yard.said() == ["0", "1", "2"]
    assert await process.end(SHORT)


async def test_a_program_is_found_in_the_working_folder(yard: Yard) -> None:
    script = yard.folder / "run.sh"
    script.write_text("#!/bin/sh\necho $0 $1\n")
    script.chmod(0o700)
    process = await yard.start("./run.sh", "--addr")
    assert await process.wait() == 0
    assert yard.said() == [f"{script} --addr"]
    assert await process.end(SHORT)


async def test_what_cannot_be_started_says_so_and_leaves_nothing_open(yard: Yard) -> None:
    before = open_files()
    with pytest.raises(ChildFailed, match=r"\./run\.sh cannot be started: there is no such executable file"):
        await yard.start("./run.sh")
    command = ProcessCommand((sys.executable,), yard.folder / "missing", {})
    with pytest.raises(ChildFailed, match="cannot be started: No such file or directory"):
        await yard.machine.start(KEY, "instance", command)
    assert open_files() == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it cannot be started at all")
async def test_a_file_the_kernel_does_not_run_says_why_in_its_output(yard: Yard) -> None:
    script = yard.folder / "run.sh"
    script.write_bytes(b"\x7fELF of another machine")
    script.chmod(0o700)
    process = await yard.start("./run.sh")
    assert await process.wait() == 127
    assert process.stderr_tail(5) == [f"cannot run {script}: Exec format error"]
    assert await process.end(SHORT)


async def test_output_is_told_apart_and_the_tail_is_of_stderr_alone(yard: Yard) -> None:
    process = await yard.python("print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    assert await process.wait() == 3
    assert process.stderr_tail(1) == ["two"]
    streams = {line.text: line.stream for line in yard.logs.lines(str(KEY))}
    assert streams == {"out": OutputStream.STDOUT, "one": OutputStream.STDERR, "two": OutputStream.STDERR}
    assert await process.end(SHORT)


# Ending


async def test_the_exit_code_of_a_killed_process_is_the_signal(yard: Yard) -> None:
    process = await yard.python("time.sleep(600)")
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert await process.end(SHORT)


async def test_a_process_that_obeys_ends_long_before_the_grace_is_over(yard: Yard) -> None:
    process = await yard.python("signal.signal(15, lambda *_: (say('bye'), sys.exit(7))); say('up'); sleep()")
    await yard.hear("up")
    with anyio.fail_after(20):
        assert await process.end(LONG)
    assert await process.wait() == 7
    await yard.hear("bye")


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(yard: Yard) -> None:
    process = await yard.python(DEAF)
    await yard.hear("deaf")
    began = anyio.current_time()
    assert await process.end(SHORT)
    assert anyio.current_time() - began >= SHORT.total_seconds()
    assert await process.wait() == -signal.SIGKILL


async def test_a_suspended_process_still_hears_sigterm(yard: Yard) -> None:
    process = await yard.python("signal.signal(15, lambda *_: sys.exit(7)); say('up'); sleep()")
    await yard.hear("up")
    os.kill(process.pid, signal.SIGSTOP)
    with anyio.fail_after(20):
        assert await process.end(LONG)
    assert await process.wait() == 7


async def test_a_suspended_process_that_ignores_sigterm_is_killed(yard: Yard) -> None:
    process = await yard.python(DEAF)
    await yard.hear("deaf")
    os.kill(process.pid, signal.SIGSTOP)
    assert await process.end(SHORT)
    assert not alive(process.pid)


async def test_what_left_the_session_and_lost_its_parent_ends_too(yard: Yard) -> None:
    process = await yard.python(
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    signal.signal(15, signal.SIG_IGN)\n"
        "    say(f'daemon={os.getpid()}'); sleep()\n"
        "os.wait(); sleep()"
    )
    stray = await yard.number("daemon")
    assert os.getsid(stray) != process.pid
    assert await process.end(SHORT)
    assert not alive(stray)


async def test_what_left_the_session_without_its_environment_ends_while_its_parent_lives(yard: Yard) -> None:
    process = await yard.python(
        "stray = subprocess.Popen(SLEEPER, env={}, start_new_session=True)\n"
        "say(f'stray={stray.pid}'); sleep()"
    )
    stray = await yard.number("stray")
    assert await process.end(SHORT)
    assert not alive(stray)


async def test_what_a_dead_process_left_in_its_session_ends_too(yard: Yard) -> None:
    process = await yard.python("say(f'left={subprocess.Popen(SLEEPER, env={}).pid}')")
    assert await process.wait() == 0
    left = await yard.number("left")
    assert alive(left)
    assert await process.end(SHORT)
    assert not alive(left)


async def test_ending_from_several_tasks_and_again_is_one_ending(yard: Yard) -> None:
    process = await yard.python("signal.signal(15, lambda *_: say('term')); say('up')\nwhile True: sleep()")
    await yard.hear("up")
    answers: list[bool] = []

    async def end() -> None:
        answers.append(await process.end(SHORT))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(end)
    assert [*answers, await process.end(SHORT)] == [True] * 6
    await yard.hear("term")
    assert yard.said() == ["up", "term"]
    assert yard.guard.leaders == set()


async def test_a_cancelled_ending_is_seen_through(yard: Yard) -> None:
    process = await yard.python(DEAF)
    await yard.hear("deaf")
    with anyio.move_on_after(0.05):
        await process.end(SHORT)
    assert not alive(process.pid)


async def test_a_grandchild_that_keeps_the_pipes_holds_nobody_up(yard: Yard) -> None:
    process = await yard.python(
        "if os.fork():\n    sys.exit(4)\nwhile True:\n    os.write(1, b'x' * 1000 + b'\\n')"
    )
    with anyio.fail_after(20):
        assert await process.wait() == 4
    assert await process.end(SHORT)
    assert yard.left() == []


# Load


async def test_a_flood_of_output_does_not_hold_up_the_loop(yard: Yard) -> None:
    amount = 300 << 20
    process = await yard.python(
        f"line = b'e' * 999 + b'\\n'\nfor _ in range({amount} // 100_000): os.write(2, line * 100)"
    )
    gaps: list[float] = []

    async def tick() -> None:
        last = anyio.current_time()
        while True:
            await anyio.sleep(TICK_S)
            gaps.append(anyio.current_time() - last)
            last = anyio.current_time()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with anyio.fail_after(90):
            assert await process.wait() == 0
        tasks.cancel_scope.cancel()
    assert process.stderr_tail(1) == ["e" * 999]
    assert len(gaps) > 10
    assert max(gaps) < 1.0
    assert await process.end(SHORT)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("tens", [2, pytest.param(5, marks=pytest.mark.long)])
async def test_tens_of_lives_leave_no_file_and_no_child(yard: Yard, tens: int) -> None:
    async def one_life(index: int) -> None:
        key = ProcessKey("model", index)
        process = await yard.start("sh", "-c", "sleep 600 & echo up; wait", key=key)
        await wait_until(lambda: "up" in yard.said(key))
        assert await process.end(LONG)

    await one_life(0)  # What is opened once stays open: threads, logs.
    files, children = open_files(), len(psutil.Process().children())
    for ten in range(tens):
        async with anyio.create_task_group() as tasks:
            for index in range(10):
                tasks.start_soon(one_life, 10 * ten + index)
    assert yard.left() == []
    assert len(psutil.Process().children()) == children
    assert open_files() <= files  # Fewer where those of an earlier test are closed only now.


# Ports and folders


async def test_a_port_is_free_unless_somebody_listens_on_any_address(yard: Yard) -> None:
    port = free_port("127.0.0.1")
    assert yard.machine.port_free(port)
    for host in ("127.0.0.1", "0.0.0.0"):
        with listen(host, port):
            assert not yard.machine.port_free(port)
    assert yard.machine.port_free(port)


async def test_ports_of_a_grandchild_count_as_those_of_the_process(yard: Yard) -> None:
    server = "s = socket.create_server(('127.0.0.1', 0)); say(f'port={s.getsockname()[1]}'); sleep()"
    process = await yard.start("sh", "-c", '"$0" -c "$1" & wait', sys.executable, PRELUDE + server)
    port = await yard.number("port")
    with listen("127.0.0.1", 0) as foreign:
        assert process.listening() == frozenset({port})
        assert await process.listener_on(port) is PortListener.OURS
        assert await process.listener_on(foreign.getsockname()[1]) is PortListener.OTHERS
    assert await process.end(SHORT)


async def test_a_port_that_is_shared_with_another_program_is_not_ours(yard: Yard) -> None:
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        foreign.bind(("127.0.0.1", 0))
        port = foreign.getsockname()[1]
        process = await yard.python(
            "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
            f"s.bind(('127.0.0.1', {port})); s.listen(); say('listens'); sleep()"
        )
        await yard.hear("listens")
        assert await process.listener_on(port) is PortListener.OURS
        foreign.listen()
        assert await process.listener_on(port) is PortListener.OTHERS
    assert await process.end(SHORT)
    assert await process.listener_on(port) is PortListener.NONE


async def test_a_folder_put_in_the_place_of_another_is_noticed(yard: Yard) -> None:
    folder, old = yard.folder / "backend", yard.folder / "old"
    assert yard.machine.folder_stamp(folder) == ""
    folder.mkdir()
    before = yard.machine.folder_stamp(folder)
    (folder / "more").touch()
    assert yard.machine.folder_stamp(folder) == before
    folder.rename(old)
    folder.mkdir()
    assert yard.machine.folder_stamp(folder) not in ("", before)
