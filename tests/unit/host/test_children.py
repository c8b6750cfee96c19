"""Child processes: gone with their group when their block ends, restarted by policy, tied to their parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from structlog.testing import capture_logs

from remuda.core.errors import ChildFailed
from remuda.host.children import Child, LaunchSpec, running, supervise
from remuda.host.restarts import RestartPolicy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

QUICKLY = RestartPolicy(
    first=timedelta(milliseconds=10),
    most=timedelta(milliseconds=40),
    healthy_after=timedelta(seconds=30),
    give_up_after=3,
)


def python(
    code: str, *, output: Path | Callable[[str], None] | None = None, env: dict[str, str] | None = None
) -> LaunchSpec:
    return LaunchSpec(
        "child",
        (sys.executable, "-c", code),
        env=env or {},
        output=output,
        grace=timedelta(milliseconds=300),
    )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_output_arrives_line_by_line_and_whole_when_the_block_ends() -> None:
    lines: list[str] = []
    async with running(python("print('one'); print('two', end='')", output=lines.append)) as child:
        assert await child.wait() == 0
    assert lines == ["one", "two"]


async def test_a_line_that_nobody_can_take_costs_neither_the_child_nor_the_next_line() -> None:
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        if line == "one":
            raise OSError("no space left")

    async with running(python("print('one'); print('two', end='')", output=take)) as child:
        assert await child.wait() == 0
    assert lines == ["one", "two"]


async def test_output_goes_to_a_file(tmp_path: Path) -> None:
    async with running(python("print('kept')", output=tmp_path / "out")) as child:
        await child.wait()
    assert (tmp_path / "out").read_text() == "kept\n"


async def test_the_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hidden")
    lines: list[str] = []
    code = "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))"
    async with running(python(code, env={"WANTED": "1"}, output=lines.append)) as child:
        await child.wait()
    assert lines == ["['WANTED']"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_child_does_not_ignore_broken_pipes() -> None:
    lines: list[str] = []
    spec = LaunchSpec("grep", ("/bin/grep", "SigIgn", "/proc/self/status"), env={}, output=lines.append)
    async with running(spec) as child:
        await child.wait()
    assert int(lines[0].split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


async def test_a_missing_program_is_said_plainly() -> None:
    with pytest.raises(ChildFailed, match="there is no program /no/such/thing"):
        async with running(LaunchSpec("ghost", ("/no/such/thing",), env={})):
            pass


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    lines: list[str] = []
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    async with running(python(code, output=lines.append)) as child:
        await wait_until(lambda: lines == ["deaf"])
    assert not alive(child.pid)


async def test_grandchildren_go_with_the_child() -> None:
    lines: list[str] = []
    code = (
        "import subprocess, sys, time\n"
        "sleeper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(sleeper.pid, flush=True); time.sleep(60)"
    )
    async with running(python(code, output=lines.append)):
        await wait_until(lambda: bool(lines))
    assert not alive(int(lines[0]))


async def test_cancellation_leaves_no_process_behind() -> None:
    pids: list[int] = []

    async def run_for_ever() -> None:
        async with running(python("import time; time.sleep(60)")) as child:
            pids.append(child.pid)
            await child.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_for_ever)
        await wait_until(lambda: bool(pids))
        tasks.cancel_scope.cancel()
    assert not alive(pids[0])


async def test_an_exception_passes_through_the_block_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with running(python("import time; time.sleep(60)", output=print)):
            raise KeyError


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
async def test_killing_the_parent_kills_the_child() -> None:
    parent = (
        "import anyio, sys\n"
        "from remuda.host.children import LaunchSpec, running\n"
        "async def main():\n"
        "    spec = LaunchSpec('sleeper', (sys.executable, '-c', 'import time; time.sleep(60)'), env={})\n"
        "    async with running(spec) as child:\n"
        "        print(child.pid, flush=True); await child.wait()\n"
        "anyio.run(main)"
    )
    process = await anyio.open_process([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    async with process:
        with anyio.fail_after(20):
            pid = int(await process.stdout.receive())
        await wait_until(lambda: "sleep(60)" in " ".join(psutil.Process(pid).cmdline()))
        process.kill()
        await process.wait()
        await wait_until(lambda: not alive(pid))


async def test_a_child_that_exits_is_started_again() -> None:
    pids: list[int] = []

    async def started(child: Child) -> None:
        pids.append(child.pid)

    async with anyio.create_task_group() as tasks:
        spec = python("import time; time.sleep(60)")
        await tasks.start(partial(supervise, spec, QUICKLY, on_start=started))
        os.kill(pids[0], signal.SIGKILL)
        await wait_until(lambda: len(pids) == 2)
        tasks.cancel_scope.cancel()
    assert not any(alive(pid) for pid in pids)


async def test_supervision_gives_up_by_policy_and_says_how_the_child_ended() -> None:
    with (
        capture_logs() as logs,
        pytest.raises(ChildFailed, match=r"child does not stay up \(exit code 3\): ended 3 times"),
    ):
        await supervise(python("raise SystemExit(3)"), QUICKLY)
    assert [entry["event"] for entry in logs] == [
        "child_started", "child_exited", "child_started", "child_exited", "child_started", "child_given_up"
    ]  # fmt: skip


async def test_a_child_that_never_gets_ready_counts_as_ended() -> None:
    pids: list[int] = []

    async def never_ready(child: Child) -> None:
        pids.append(child.pid)
        raise ChildFailed("it does not answer")

    with pytest.raises(ChildFailed, match="it does not answer"):
        await supervise(python("import time; time.sleep(60)"), QUICKLY, on_start=never_ready)
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)
