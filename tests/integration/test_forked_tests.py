"""The runner of this suite: copies of one process that run tests."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_CONFTEST = """
from tests.support.forked_tests import add_option, run_forked

def pytest_addoption(parser):
    add_option(parser)

def pytest_runtestloop(session):
    return run_forked(session, lambda item: item.path.name)
"""
_DYING = """
import os

def test_passes(): pass
def test_dies(): os._exit(3)
def test_comes_after(): pass
"""
_PASSING = """
import os
import pytest

@pytest.fixture(scope="module")
def process(): return os.getpid()

@pytest.mark.parametrize("number", range(20))
def test_passes(number, process): assert os.getpid() == process
def test_fails(): assert os.environ["TEST_PROCESSES"] == "two"
"""


def test_every_test_is_told_of_though_its_process_died(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    for name, text in {"dying": _DYING, "passing": _PASSING, "passing_too": _PASSING}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    ended = _pytest(tmp_path, "--processes", "2")
    assert ended.returncode == 1
    assert "test_dying.py::test_dies: its process ended with 3" in ended.stdout
    assert "test_dying.py::test_comes_after: not run: its process has ended" in ended.stdout
    assert "assert '2' == 'two'" in ended.stdout
    assert "4 failed, 41 passed" in ended.stdout


def test_costs_are_told_by_module(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    work = "[sys.executable, '-c', 'sum(range(10**7))']"
    working = f"import subprocess, sys\ndef test_works(): subprocess.run({work})"
    (tmp_path / "test_working.py").write_text(working)
    (tmp_path / "test_passing.py").write_text("def test_passes(): pass")
    ended = _pytest(tmp_path, "--processes", "2", "--costs")
    rows = [line.split() for line in ended.stdout.splitlines() if line.endswith(".py")]
    costs = {module: float(cpu_s) for cpu_s, _, module in rows}
    assert costs["test_working.py"] > 0.05 > costs["test_passing.py"]


def test_first_failure_can_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_failing.py").write_text("def test_fails(): assert False")
    (tmp_path / "test_waiting.py").write_text("import time\ndef test_waits(): time.sleep(600)")
    ended = _pytest(tmp_path, "--processes", "2", "-x")
    assert ended.returncode == 1
    assert "1 failed in" in ended.stdout
    assert "stopping after 1 failures" in ended.stdout


def test_a_test_that_hangs_is_ended_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_hanging.py").write_text(
        "import threading\ndef test_hangs(): threading.Event().wait(600)"
    )
    ended = _pytest(tmp_path, "--processes", "2", "--timeout", "1", "--timeout-method", "thread")
    assert "test_hanging.py::test_hangs: its process ended with 1" in ended.stdout
    assert "in test_hangs" in ended.stderr
    assert "1 failed" in ended.stdout


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    return subprocess.run(
        [*words, "-p", "no:hypothesispytest", "-p", "no:schemathesis", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
