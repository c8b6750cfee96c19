"""What a worker started does not outlive it: the reaper sees to it, and after the reaper the next worker."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.abc
import psutil
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from remuda.core.entropy import SystemEntropy
from remuda.core.ids import BootId
from remuda.host import descendants
from remuda.host.descendants import Identity, Mark, everyone
from remuda.host.process_family import Reaper
from remuda.worker.processes.supervisor import Survivor, end_survivors
from tests.integration.worker import lone_worker
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="marks of shells can be read on Linux only"),
]

BOOT = BootId("boot")
SHORT = timedelta(milliseconds=300)
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


class LoneWorker:
    """It has started its backend, and `family` is everyone it is to take with it."""

    def __init__(self, process: anyio.abc.Process, owner: str, family: list[int]) -> None:
        self.process = process
        self.owner = owner
        self.family = family

    def reaper(self) -> int | None:
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # It has ended since it was listed.
                if descendants.__file__ in child.cmdline():
                    return child.pid
        return None

    def left(self) -> list[int]:
        return [pid for pid in self.family if alive(pid)]

    async def until_nothing_is_left(self) -> None:
        await wait_until(lambda: not self.left() and not marked(self.owner), within=20, what="nothing left")


@pytest.fixture
def owner() -> str:
    return SystemEntropy().uuid()


@pytest.fixture
async def worker(owner: str, tmp_path: Path) -> AsyncIterator[LoneWorker]:
    process = await anyio.open_process(
        [sys.executable, "-m", lone_worker.__name__, owner, BOOT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=None,
        start_new_session=True,
    )
    assert process.stdout is not None
    with anyio.fail_after(30):
        line = b""
        while not line.startswith(b"pids"):
            line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1000)
    family = [int(word) for word in line.split()[1:]]
    yield LoneWorker(process, owner, family)
    for pid in [process.pid, *filter(alive, family)]:
        kill(pid)
    await process.wait()
    await process.aclose()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(owner: str) -> list[int]:
    return [seen.pid for seen in everyone() if seen.mark and seen.mark.owner == owner]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# The reaper


async def test_a_killed_worker_takes_all_its_processes_with_it(worker: LoneWorker) -> None:
    assert len(worker.left()) == 4
    reaper = worker.reaper()
    assert reaper is not None
    kill(worker.process.pid)
    await worker.until_nothing_is_left()
    await wait_until(lambda: not alive(reaper), what="the reaper to go")


async def test_killing_the_whole_group_of_the_worker_does_not_help_its_processes(worker: LoneWorker) -> None:
    assert worker.left(), "there is something to be ended"
    os.killpg(worker.process.pid, signal.SIGKILL)
    await worker.until_nothing_is_left()


async def test_the_reaper_stays_while_the_worker_lives(worker: LoneWorker) -> None:
    reaper = worker.reaper()
    assert reaper is not None
    await wait_until(lambda: ignores(reaper, signal.SIGTERM), what="a reaper that is on duty")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(reaper, number)
    kill(worker.process.pid)
    await worker.until_nothing_is_left()


def ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_a_killed_reaper_is_followed_by_one_that_knows_as_much(worker: LoneWorker) -> None:
    first = worker.reaper()
    assert first is not None
    kill(first)
    await wait_until(lambda: worker.reaper() not in (None, first), what="another reaper")
    assert len(worker.left()) == 4
    kill(worker.process.pid)
    await worker.until_nothing_is_left()


async def test_a_reaper_that_is_dismissed_ends_what_is_left_of_this_boot_alone(owner: str) -> None:
    async with anyio.create_task_group() as tasks:
        ours = await start(Mark(owner, BOOT, "ours"))
        another = await start(Mark(owner, "another boot", "another"))
        reaper = Reaper(owner, BOOT)
        await tasks.start(reaper.run)
        tasks.cancel_scope.cancel()
    assert not alive(ours)
    assert alive(another)
    kill(another)


async def test_the_reaper_ends_a_session_in_which_nobody_kept_a_mark(owner: str) -> None:
    leader, stray = await orphan({}, new_session=False)
    reaper = Reaper(owner, BOOT)
    reaper.watch(Identity(leader, "over"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(reaper.run)
        assert alive(stray)
        tasks.cancel_scope.cancel()
    assert not alive(stray)


async def start(mark: Mark) -> int:
    """A process that is nobody's to wait for."""
    _, pid = await orphan(mark.environ(), new_session=True)
    return pid


async def orphan(environ: Mapping[str, str], *, new_session: bool) -> tuple[int, int]:
    """The pids of a process that has ended and of one that it started, in its session or in a new one."""
    how = f"stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session={new_session}"
    code = f"import os, subprocess; print(os.getpid(), subprocess.Popen({SLEEPER!r}, {how}).pid)"
    done = await anyio.run_process([sys.executable, "-c", code], env=environ, start_new_session=True)
    leader, pid = map(int, done.stdout.split())
    return leader, pid


# Survivors


async def test_what_outlived_worker_and_reaper_is_found_and_ended(worker: LoneWorker) -> None:
    reaper = worker.reaper()
    assert reaper is not None
    os.kill(worker.process.pid, signal.SIGSTOP)  # So that it does not start another.
    kill(reaper)
    kill(worker.process.pid)
    await worker.process.wait()
    daemon = worker.family[-1]
    assert alive(daemon)
    with anyio.fail_after(20):
        survivors = await end_survivors(worker.owner, BootId("next"), SHORT)
    told = next(survivor for survivor in survivors if survivor.pid == daemon)
    assert (told.instance, told.gone) == ("instance", True)
    assert told.command[0] == sys.executable
    assert marked(worker.owner) == []


async def test_there_are_no_survivors_where_nothing_was_left(owner: str) -> None:
    assert await end_survivors(owner, BOOT) == ()


async def test_only_earlier_boots_of_this_folder_are_ended(owner: str) -> None:
    earlier = await start(Mark(owner, "earlier", "one"))
    present = await start(Mark(owner, BOOT, "two"))
    foreign = await start(Mark(f"{owner}x", "earlier", "three"))
    survivors = await end_survivors(owner, BOOT)
    assert survivors == (Survivor(earlier, "one", SLEEPER, gone=True),)
    assert [alive(pid) for pid in (earlier, present, foreign)] == [False, True, True]
    for pid in (present, foreign):
        kill(pid)


async def test_a_suspended_survivor_ends_too(owner: str) -> None:
    pid = await start(Mark(owner, "earlier", "one"))
    os.kill(pid, signal.SIGSTOP)
    with anyio.fail_after(20):
        (survivor,) = await end_survivors(owner, BOOT, timedelta(seconds=60))
    assert survivor.gone
    assert not alive(pid)


# Orphans

ADOPTING = """
import os, subprocess, sys
import anyio
from remuda.host.descendants import everyone
from remuda.host.process_family import adopt_orphans, reap_once

def zombies(): return [seen for seen in everyone() if seen.parent == os.getpid() and seen.zombie]

async def until_zombies(count):
    while len(zombies()) != count: await anyio.sleep(0.01)

async def main():
    adopt_orphans()
    {body}

anyio.run(main, backend_options={{"use_uvloop": True}})
"""


async def adopting(body: str) -> str:
    """What a process that adopts orphans prints; in one of its own, for there is no way back."""
    with anyio.fail_after(20):
        done = await anyio.run_process(
            [sys.executable, "-c", ADOPTING.format(body=body.replace("\n", "\n    "))]
        )
    return done.stdout.decode().strip()


async def test_an_orphan_is_reaped_at_once() -> None:
    printed = await adopting(
        "await anyio.run_process(['sh', '-c', '(sleep 0.1; exit 3) & exit 0'], start_new_session=True)\n"
        "await until_zombies(1)\n"
        "print(await reap_once(frozenset()), zombies())"
    )
    assert printed == "frozenset() []"


async def test_a_child_that_somebody_may_wait_for_is_left_to_them_first() -> None:
    printed = await adopting(
        "child = subprocess.Popen(['sh', '-c', 'exit 3'])\n"
        "await until_zombies(1)\n"
        "left = await reap_once(frozenset())\n"
        "print(len(left), len(zombies()), await reap_once(left), zombies())"
    )
    assert printed == "1 1 frozenset() []"


async def test_a_child_that_is_waited_for_keeps_its_exit_code() -> None:
    printed = await adopting(
        "async with anyio.create_task_group() as tasks:\n"
        "    async def reap():\n"
        "        while True: await reap_once(frozenset()); await anyio.sleep(0)\n"
        "    tasks.start_soon(reap)\n"
        "    failing = ['sh', '-c', 'exit 3']\n"
        "    print({(await anyio.run_process(failing, check=False)).returncode for _ in range(50)})\n"
        "    tasks.cancel_scope.cancel()"
    )
    assert printed == "{3}"
