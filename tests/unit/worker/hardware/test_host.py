"""The real machine's side: bounded, quiet, never raising."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from remuda.worker.hardware.detect import detect, refresh
from remuda.worker.hardware.host import NvmlFailed, NvmlUnsupported, SystemHost, SystemNvml
from remuda.worker.hardware.model import Capacity
from remuda.worker.hardware.system import read_disk


class StandInError(Exception):
    pass


class StandInNotSupported(StandInError):
    pass


class StandInPynvml(ModuleType):
    """One H200 of which places 0 and 2 out of 3 hold a MIG slice."""

    NVMLError = StandInError
    NVMLError_NotSupported = StandInNotSupported
    driver_loaded = True

    def nvmlInit(self) -> None:
        if not self.driver_loaded:
            raise StandInError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"card-{index}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        if handle == "slice-2":
            raise StandInNotSupported("Not Supported")
        return SimpleNamespace(total=150754820096, free=150109880320, used=0)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        if handle.startswith("slice"):
            return 0, 0
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:
        if place == 1:
            raise StandInError("Not Found")
        return f"slice-{place}"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandInPynvml:
    stand_in = StandInPynvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    return stand_in


def test_absent_driver_is_told_in_the_librarys_words(library: StandInPynvml) -> None:
    library.driver_loaded = False

    with pytest.raises(NvmlFailed, match="Driver Not Loaded"):
        SystemNvml()


@pytest.mark.usefixtures("library")
def test_card_answers_each_question() -> None:
    nvml = SystemNvml()
    card = nvml.device(0)

    assert (nvml.driver_version(), nvml.count()) == ("580.159.04", 1)
    assert (card.name(), card.compute_capability()) == ("name of card-0", (9, 0))


@pytest.mark.usefixtures("library")
def test_memory_the_driver_keeps_for_itself_is_not_free() -> None:
    assert SystemNvml().device(0).memory() == Capacity(150754820096, 150109880320)


@pytest.mark.usefixtures("library")
def test_empty_places_of_a_sliced_card_are_passed_over() -> None:
    slices = SystemNvml().device(0).slices()

    assert slices is not None
    assert [part.name() for part in slices] == ["name of slice-0", "name of slice-2"]
    assert slices[0].slices() is None


@pytest.mark.usefixtures("library")
def test_unsupported_question_is_told_apart_from_a_failure() -> None:
    slices = SystemNvml().device(0).slices()

    assert slices is not None
    with pytest.raises(NvmlUnsupported):
        slices[1].memory()


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
    room = read_disk(SystemHost(), tmp_path / "not" / "yet")

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
