"""Whatever goes wrong costs the part it concerns, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.hardware.detect import detect, refresh
from remuda.worker.hardware.host import Nvml
from tests.unit.worker.hardware.fixture_host import (
    MODELS_DIR,
    FixtureHost,
    RecordedDevice,
    RecordedMemory,
    RecordedNvml,
    load,
)


class ExplodingNvmlHost(FixtureHost):
    def nvml(self) -> Nvml:
        raise RuntimeError("not even an NVML error")


def test_raising_nvidia_detector_loses_nvidia_only() -> None:
    amd = load("amd-rx-7900").but(files={"/dev/nvidiactl": ""})

    found = detect(ExplodingNvmlHost(amd.recorded), MODELS_DIR)

    assert found.gpu_vendor == "amd"
    assert "nvidia" in found.problems[0]
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("cursed", "part"),
    [("/proc/meminfo", "memory"), ("/proc/cpuinfo", "cpu"), ("/sys/devices/soc0", "unified")],
)
def test_raising_part_is_named_and_the_rest_stays(cursed: str, part: str) -> None:
    host = replace(load("amd-rx-7900"), cursed=cursed)

    found = detect(host, MODELS_DIR)

    assert found.total_vram == 24560 << 20
    assert found.total_disk == 1000000000000
    assert part in found.problems[0]


def test_lost_card_leaves_the_other_card() -> None:
    lost = RecordedDevice(memory=RecordedMemory(), cc=(0, 0), broken=True)
    well = RecordedDevice(name="RTX", memory=RecordedMemory(total=24 << 30, free=20 << 30), cc=(8, 9))
    host = load("two-unlike-nvidia").but(nvml=RecordedNvml(driver="1", devices=[lost, well]))

    found = detect(host, MODELS_DIR)

    assert (found.total_vram, found.available_vram) == (24 << 30, 20 << 30)
    assert found.gpu_compute_capability == "8.9"
    assert found.problems == ("NVIDIA GPU 0 does not report its memory: GPU is lost.",)


def test_unsupported_memory_on_a_pc_is_not_taken_for_shared_ram() -> None:
    silent = RecordedDevice(name="Tesla", memory=RecordedMemory(unsupported=True), cc=(7, 0))
    host = load("two-unlike-nvidia").but(nvml=RecordedNvml(devices=[silent]))

    found = detect(host, MODELS_DIR)

    assert (found.gpu_vendor, found.total_vram) == ("nvidia", 0)
    assert found.problems == ("NVIDIA GPU 0 does not report its memory.",)


@pytest.mark.parametrize("garbage", ["", "-1\n", "lots\n", "\0\ufffd", "9" * 5000, "1e9\n", "٣\n"])
def test_garbage_in_a_cards_figures_loses_that_card_only(garbage: str) -> None:
    total = "/sys/class/drm/card0/device/mem_info_vram_total"

    found = detect(load("amd-rx-7900").but(files={total: garbage}), MODELS_DIR)

    assert found.gpus == ()
    assert found.total_ram > 0
    assert "does not report its memory" in found.problems[0]


def test_more_used_than_there_is_means_none_free() -> None:
    used = "/sys/class/drm/card0/device/mem_info_vram_used"

    found = detect(load("amd-rx-7900").but(files={used: f"{99 << 40}\n"}), MODELS_DIR)

    assert found.available_vram == 0


def test_unknown_usage_means_all_of_it_is_free() -> None:
    used = "/sys/class/drm/card0/device/mem_info_vram_used"

    found = detect(load("amd-rx-7900").but(files={used: None}), MODELS_DIR)

    assert found.available_vram == found.total_vram


READ_FILES = sorted(
    path
    for name in ("amd-rx-7900", "intel-arc", "jetson-orin", "container-with-limit")
    for path in load(name).recorded.files
)


@given(st.dictionaries(st.sampled_from(READ_FILES), st.text(max_size=40), max_size=8))
def test_no_content_of_any_file_makes_it_raise_or_promise_too_much(files: dict[str, str]) -> None:
    host = load("container-with-limit").but(files=files)

    found = refresh(detect(host, MODELS_DIR), host, MODELS_DIR)

    assert 0 <= found.available_ram <= found.total_ram
    assert 0 <= found.available_vram <= found.total_vram
