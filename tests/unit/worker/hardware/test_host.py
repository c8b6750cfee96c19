"""The real machine's side: bounded, quiet, never raising."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.worker.hardware import disk
from remuda.worker.hardware.detect import detect, refresh
from remuda.worker.hardware.host import SystemHost

SHORT = timedelta(milliseconds=200)
LONG = timedelta(seconds=30)


def test_hanging_command_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    output = SystemHost().run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 600"], timeout=SHORT)

    assert output is None
    if pid_file.exists():  # On a very slow machine the shell may not have come that far.
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize("argv", [["/no/such/program"], ["false"], ["/"]])
def test_command_that_cannot_answer_is_no_answer(argv: list[str]) -> None:
    assert SystemHost().run(argv, timeout=LONG) is None


def test_command_answers_with_its_output() -> None:
    assert SystemHost().run(["echo", "hello"], timeout=LONG) == "hello\n"


def test_missing_and_odd_files_are_no_answer(tmp_path: Path) -> None:
    host = SystemHost()

    assert host.read_text(str(tmp_path / "missing")) is None
    assert host.read_text(str(tmp_path)) is None
    assert list(host.list_dir(str(tmp_path / "missing"))) == []
    assert not host.exists(str(tmp_path / "missing"))
    assert host.disk_usage(str(tmp_path / "missing")) is None


def test_bytes_that_are_no_text_are_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\xff\n")

    assert SystemHost().read_text(str(tmp_path / "file")) == "a\ufffd\n"


def test_models_folder_not_made_yet_counts_as_its_parent(tmp_path: Path) -> None:
    room = disk.read(SystemHost(), tmp_path / "not" / "yet")

    assert room is not None
    assert 0 <= room.available <= room.total


def test_memory_without_proc_comes_from_the_system() -> None:
    reading = SystemHost().memory()

    assert reading is not None
    assert 0 < reading.available <= reading.total


def test_machine_under_test_is_described_and_refreshed(tmp_path: Path) -> None:
    host = SystemHost()

    found = detect(host, tmp_path)
    again = refresh(found, host, tmp_path)

    assert found.total_ram > 0
    assert found.total_disk is not None
    assert found.cpu_cores >= 1
    assert found.capability
    assert (again.total_ram, again.gpu_vendor) == (found.total_ram, found.gpu_vendor)


def test_importing_the_detectors_brings_in_neither_pynvml_nor_psutil() -> None:
    probe = "import sys, remuda.worker.hardware.detect; print({'pynvml', 'psutil'} & set(sys.modules))"

    answer = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )

    assert answer.stdout == "set()\n"
