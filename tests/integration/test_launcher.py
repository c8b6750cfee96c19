"""./remuda on machines that lack one thing after another. The project it starts is a small stand-in."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.bare_machine import bare_machine

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "remuda"
version = "1"
requires-python = ">=3.11"
[project.scripts]
remuda = "remuda:main"
"""
PROGRAM = """
import json, os, sys
def main():
    print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd()}))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "a clone"
    (folder / "src/remuda").mkdir(parents=True)
    (folder / "tools").mkdir()
    for name in ("remuda", "tools/uv.sh"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "src/remuda/__init__.py").write_text(PROGRAM)
    return folder


def launch(clone: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    caller_folder = environment["HOME"]
    return subprocess.run(
        [clone / "remuda", *arguments],
        cwd=caller_folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_arguments_and_folder_are_the_callers(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine", uv=True)
    done = launch(clone, machine, "up", "--name", "two words")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"arguments": ["up", "--name", "two words"], "folder": machine["HOME"]}


def test_later_runs_are_quiet_even_inside_another_environment(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine", uv=True)
    launch(clone, machine)
    done = launch(clone, machine | {"VIRTUAL_ENV": str(tmp_path / "elsewhere")})
    assert (done.returncode, done.stderr) == (0, "")


def test_launcher_works_through_a_link(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine", uv=True)
    link = tmp_path / "links"
    link.mkdir()
    (link / "remuda").symlink_to(clone / "remuda")
    assert launch(link, machine).returncode == 0


@pytest.mark.skipif(not importlib.util.find_spec("ensurepip"), reason="this Python cannot make environments")
def test_without_uv_the_launcher_brings_its_own(clone: Path, tmp_path: Path) -> None:
    done = launch(clone, bare_machine(tmp_path / "machine"), "up")
    assert done.returncode == 0, done.stderr
    assert (clone / ".launcher/venv/bin/uv").exists()


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("ensurepip"), reason="this Python cannot make environments")
def test_without_uv_and_ensurepip_the_systems_pip_brings_it(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine")
    subprocess.run(["python3", "-m", "venv", tmp_path / "with pip"], env=machine, check=True, timeout=60)
    (pip,) = (tmp_path / "with pip").glob("lib/python*/site-packages")
    hide(machine, "*'import ensurepip'*", but_add=pip)
    done = launch(clone, machine, "up")
    assert done.returncode == 0, done.stderr
    assert (clone / ".launcher/target/bin/uv").exists()


def test_with_neither_pip_nor_apt_the_launcher_says_what_to_install(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine")
    hide(machine, "*'import ensurepip'* | *'-m pip'*")
    done = launch(clone, machine, "up")
    assert done.returncode == 1
    assert "please install uv" in done.stderr


def test_without_a_new_enough_python_the_launcher_says_so(clone: Path, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "machine")
    hide(machine, "*version_info*")
    done = launch(clone, machine, "up")
    assert done.returncode == 1
    assert "no Python 3.11 or newer was found" in done.stderr


def hide(machine: dict[str, str], arguments: str, but_add: Path | None = None) -> None:
    """Make the machine's Python fail when its arguments match a shell pattern."""
    program = Path(machine["PATH"]) / "python3"
    modules = f'export PYTHONPATH="{but_add}"\n' if but_add else ""
    refuse = f'case "$*" in {arguments}) exit 1 ;; esac\n'
    program.write_text(program.read_text().replace("exec", f"{refuse}{modules}exec"))
