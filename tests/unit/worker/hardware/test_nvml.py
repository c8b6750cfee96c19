"""The adapter over pynvml, with a stand-in for that library: CI machines have no NVIDIA driver."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from remuda.worker.hardware.model import Capacity
from remuda.worker.hardware.nvml import NvmlFailed, NvmlUnsupported, SystemNvml


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
