"""The brief look at every heartbeat."""

import pytest

from remuda.worker.hardware.detect import detect, refresh
from remuda.worker.hardware.host import Nvml
from tests.unit.worker.hardware.fixture_host import (
    MODELS_DIR,
    FixtureHost,
    RecordedNvml,
    fixture_names,
    load,
)


@pytest.mark.parametrize("name", fixture_names())
def test_unchanged_machine_stays_the_same(name: str) -> None:
    host = load(name)
    before = detect(host, MODELS_DIR)

    assert refresh(before, host, MODELS_DIR) == before


def test_free_ram_is_read_again() -> None:
    before = detect(load("raspberry-pi"), MODELS_DIR)
    busier = load("raspberry-pi").but(
        files={"/proc/meminfo": "MemTotal: 8258944 kB\nMemAvailable: 1000 kB\n"}
    )

    after = refresh(before, busier, MODELS_DIR)

    assert (after.total_ram, after.available_ram) == (before.total_ram, 1000 * 1024)


def test_free_vram_of_a_card_is_read_again() -> None:
    before = detect(load("amd-rx-7900"), MODELS_DIR)
    busier = load("amd-rx-7900").but(
        files={"/sys/class/drm/card0/device/mem_info_vram_used": f"{before.total_vram - 5}\n"}
    )

    assert refresh(before, busier, MODELS_DIR).available_vram == 5


def test_shared_memory_follows_ram() -> None:
    before = detect(load("dgx-spark"), MODELS_DIR)
    busier = load("dgx-spark").but(files={"/proc/meminfo": "MemTotal: 127600748 kB\nMemAvailable: 7 kB\n"})

    assert refresh(before, busier, MODELS_DIR).available_vram == 7 * 1024


def test_figures_that_can_no_longer_be_read_keep_their_last_value() -> None:
    before = detect(load("two-unlike-nvidia"), MODELS_DIR)
    failing = load("two-unlike-nvidia").but(
        files={"/proc/meminfo": None}, nvml=RecordedNvml(error="GPU is lost")
    )

    assert refresh(before, failing, MODELS_DIR) == before


class NoNvmlHost(FixtureHost):
    def nvml(self) -> Nvml:
        raise AssertionError("a machine without an NVIDIA card must not be asked for NVML")


@pytest.mark.parametrize("name", ["raspberry-pi", "amd-rx-7900", "intel-arc", "apple-m2"])
def test_machine_without_nvidia_never_opens_nvml(name: str) -> None:
    host = NoNvmlHost(load(name).recorded)

    found = refresh(detect(host, MODELS_DIR), host, MODELS_DIR)

    assert found.problems == ()
