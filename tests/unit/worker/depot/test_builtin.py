"""The run file of a backend that ships with Remuda."""

import subprocess
from pathlib import Path

import pytest

from remuda.core.errors import NotFound
from remuda.worker.depot.stage_version import run_script, write_run_file


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["./run.sh", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def test_it_starts_the_module_with_its_arguments_whatever_the_interpreters_folder_is_called(
    tmp_path: Path,
) -> None:
    python = executable(tmp_path / 'it\'s $HOME "here"' / "python", '#!/bin/sh\nprintf "%s|" "$@"\n')
    write_run_file(tmp_path, run_script("builtin:llama-cpp", "builtin-llama-cpp", python))

    done = run(tmp_path, "--addr", "0.0.0.0:1 2")

    assert done.stdout == "-P|-m|remuda.backends.llama_cpp|--addr|0.0.0.0:1 2|"


def test_an_interpreter_that_is_gone_is_named(tmp_path: Path) -> None:
    write_run_file(tmp_path, run_script("builtin:echo", "echo", tmp_path / "gone" / "python"))

    done = run(tmp_path)

    assert done.returncode == 127
    assert f"{tmp_path}/gone/python is gone" in done.stderr
    assert "remuda backends pull echo" in done.stderr


def test_what_does_not_ship_with_remuda_is_not_found() -> None:
    with pytest.raises(NotFound, match="builtin:engine does not ship"):
        run_script("builtin:engine", "engine", Path("python"))
