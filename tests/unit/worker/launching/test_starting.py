"""How a worker starts what is installed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda.core.errors import Invalid
from remuda.wire.backends import BackendInstall
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.launching.starting import Starting

STARTING = Starting({}, OpeningTokens(None))
MODEL = BackendInstall(backend="engine", model_id="m", protocol="http")


def test_run_file_without_its_execute_bit_is_made_executable(tmp_path: Path) -> None:
    run_file = tmp_path / "run.sh"
    run_file.write_text("#!/bin/sh\n")
    run_file.chmod(0o644)
    assert STARTING.recipe(run_file, MODEL) is not None
    assert os.access(run_file, os.X_OK)
    assert run_file.stat().st_mode & 0o044 == 0o044, "others may still read it"


def test_program_that_is_not_called_run_sh_is_started_itself(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    recipe = STARTING.recipe(program, MODEL)
    assert recipe is not None
    assert recipe.argv[0] == "./engine"


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _large(path: Path) -> None:
    path.write_bytes(b"#" * ((64 << 10) + 1))


@pytest.mark.parametrize("make", [_device, _pipe, _link_out, _link_to_itself, _large])
def test_manifest_that_is_no_small_file_of_its_own_is_refused(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "remuda.yaml")
    with pytest.raises(Invalid, match=r"remuda\.yaml"):
        STARTING.recipe(tmp_path / "remuda.yaml", MODEL)


def test_run_file_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "remuda.yaml").write_text("protocol: grpc\n")
    with pytest.raises(Invalid, match=r"run\.sh is missing"):
        STARTING.recipe(tmp_path / "remuda.yaml", MODEL)


HTTP = """
protocol: http
command: [./server, --port, "{port}", --model, "{model_path}"]
env: {MODEL: "{model_name}", PORT: "{port}"}
"""
PROOF = BackendInstall(backend="engine", prove=True)


def manifest(folder: Path, text: str) -> Path:
    path = folder / "remuda.yaml"
    path.write_text(text)
    return path


def test_server_that_needs_a_model_is_not_started_without_one(tmp_path: Path) -> None:
    file = manifest(tmp_path, HTTP)
    assert STARTING.recipe(file, BackendInstall(backend="engine")) is None
    assert STARTING.recipe(file, PROOF) is None


def test_server_is_proven_by_the_start_that_its_file_declares(tmp_path: Path) -> None:
    file = manifest(tmp_path, HTTP + 'check: [./server, --port, "{port}", --no-model]\n')
    recipe = STARTING.recipe(file, PROOF)
    assert recipe is not None
    assert recipe.command(9000).argv == ("./server", "--port", "9000", "--no-model")
    assert recipe.command(9000).env == {"PORT": "9000"}
    assert STARTING.recipe(file, BackendInstall(backend="engine")) == recipe, "an install starts it, too"
