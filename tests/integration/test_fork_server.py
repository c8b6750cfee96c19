"""A process copied from the template is like one that a new interpreter runs."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.fork_server import FORK_SERVER, ForkedProcess
from tests.support.namespaces import two_machines
from tests.support.processes import ranch
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere every process is a new interpreter"
)

PROGRAM = """
import os, sys, time
print(sys.argv[1:], os.environ["WHO"], sys.stdin.read(), os.getsid(0) == os.getpid(), sys.flags.dev_mode)
print("to stderr", file=sys.stderr)
if sys.argv[1:]:
    time.sleep(600)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    FORK_SERVER.prepare()
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return "forked_program"


def started(folder: Path, *words: str, **environ: str) -> ForkedProcess | None:
    typed = folder / "typed"
    typed.write_text("typed")
    with typed.open("rb") as stdin, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return FORK_SERVER.start(words, {**os.environ, **environ}, stdin=stdin, stdout=out, stderr=err)


def test_it_has_its_own_arguments_environment_streams_session_and_exit_code(
    tmp_path: Path, program: str
) -> None:
    process = started(tmp_path, program, WHO="me")
    assert process is not None
    assert process.wait(30) == 3
    assert process.poll() == 3
    assert (tmp_path / "out").read_text() == "[] me typed True False\n"
    assert (tmp_path / "err").read_text() == "to stderr\n"


def test_it_is_a_child_of_the_tests_and_can_be_killed(tmp_path: Path, program: str) -> None:
    process = started(tmp_path, program, "stay", WHO="me")
    assert process is not None
    seen = psutil.Process(process.pid)
    assert seen.ppid() == os.getpid()
    wait_until_blocking(lambda: "to stderr" in (tmp_path / "err").read_text())
    assert [word for word in seen.cmdline() if word] == [sys.executable, "-m", program, "stay"]
    assert seen.environ() == {**os.environ, "WHO": "me"}
    assert process.poll() is None
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


def test_the_worker_of_a_copy_is_its_child_and_ends_with_it(tmp_path: Path) -> None:
    with ranch(tmp_path / "ranch") as place:
        up = place.up()
        worker = up.child("worker")
        assert worker.ppid() == up.pid
        assert worker.environ()["REMUDA_DATA_DIR"] == str(up.data_dir)
        assert {process.pid for process in place.processes()} >= {up.pid, worker.pid}
        up.kill()
        assert psutil.wait_procs([worker], 30)[1] == []


def test_what_an_interpreter_reads_at_its_start_needs_a_new_one(tmp_path: Path, program: str) -> None:
    assert started(tmp_path, program, WHO="me", PYTHONDEVMODE="1") is None


def test_another_thread_may_start_one(tmp_path: Path, program: str) -> None:
    with ThreadPoolExecutor(1) as beside:
        process = beside.submit(started, tmp_path, program, WHO="me").result()
    assert process is not None
    assert process.wait(30) == 3


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may make networks")
def test_a_thread_with_a_network_of_its_own_needs_a_new_one(tmp_path: Path, program: str) -> None:
    with two_machines() as (left, _):
        assert left.run(lambda: started(tmp_path, program, WHO="me")) is None
