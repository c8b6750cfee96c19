"""What is found on each recorded machine."""

from dataclasses import dataclass

import pytest

from remuda.worker.hardware.detect import detect
from remuda.worker.hardware.model import Gpu
from tests.unit.worker.hardware.fixture_host import (
    MODELS_DIR,
    RecordedDevice,
    RecordedMemory,
    RecordedNvml,
    fixture_names,
    load,
)

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Expected:
    vendor: str
    total_vram: int
    available_vram: int
    compute_capability: str
    driver_version: str
    capability: str
    cpu_model: str


MACHINES = {
    "nvidia-h200": Expected("nvidia", 150754820096, 150109880320, "9.0", "580.159.04", "nvidia-cuda-13", ""),
    "jetson-orin": Expected(
        "nvidia",
        64349560 * 1024,
        58000000 * 1024,
        "8.7",
        "36.4.3",
        "nvidia-l4t-cuda-12",
        "NVIDIA Jetson AGX Orin Developer Kit",
    ),
    "dgx-spark": Expected(
        "nvidia", 127600748 * 1024, 118566368 * 1024, "12.1", "580.173.02", "nvidia-l4t-cuda-13", ""
    ),
    "amd-rx-7900": Expected(
        "amd", 24560 * MIB, 23536 * MIB, "", "", "amd", "AMD Ryzen 9 7950X 16-Core Processor"
    ),
    "intel-arc": Expected("intel", 12 * GIB, 12 * GIB, "", "", "intel", "Intel(R) Core(TM) i5-14600K"),
    "apple-m2": Expected("apple", 16 * GIB, 9 * GIB, "", "", "metal", "Apple M2"),
    "raspberry-pi": Expected("", 0, 0, "", "", "default", "Raspberry Pi 5 Model B Rev 1.0"),
    "integrated-intel-laptop": Expected("", 0, 0, "", "", "default", "12th Gen Intel(R) Core(TM) i7-1260P"),
    "two-unlike-nvidia": Expected(
        "nvidia",
        (24564 + 12288) * MIB,
        (24057 + 12000) * MIB,
        "8.6",
        "550.163.01",
        "nvidia-cuda-12",
        "AMD Ryzen Threadripper 3960X 24-Core Processor",
    ),
    "container-with-limit": Expected("", 0, 0, "", "", "default", "Intel(R) Xeon(R) Gold 6338"),
}


@pytest.mark.parametrize("name", fixture_names())
def test_every_fixture_names_its_source_and_whether_it_was_seen_on_real_hardware(name: str) -> None:
    recorded = load(name).recorded

    assert len(recorded.source.split()) > 5
    assert recorded.verified == (name == "nvidia-h200")


def test_every_fixture_is_expected_to_be_something() -> None:
    assert set(MACHINES) == set(fixture_names())


@pytest.mark.parametrize("name", MACHINES)
def test_machine_is_recognised(name: str) -> None:
    found = detect(load(name), MODELS_DIR)

    assert MACHINES[name] == Expected(
        found.gpu_vendor,
        found.total_vram,
        found.available_vram,
        found.gpu_compute_capability,
        found.driver_version,
        found.capability,
        found.cpu_model,
    )
    assert found.problems == ()


@pytest.mark.parametrize("name", MACHINES)
def test_ram_disk_and_cores_are_told_beside_vram(name: str) -> None:
    host = load(name)

    found = detect(host, MODELS_DIR)

    assert 0 < found.available_ram <= found.total_ram
    assert (found.total_disk, found.available_disk) == (
        host.recorded.disk["total"],
        host.recorded.disk["available"],
    )
    assert found.cpu_cores == host.cpu_count


def test_jetson_with_nvml_is_not_counted_twice() -> None:
    device = RecordedDevice(name="Orin (nvgpu)", memory=RecordedMemory(), cc=(8, 7))
    host = load("jetson-orin").but(nvml=RecordedNvml(driver="540.4.0", devices=[device]))

    found = detect(host, MODELS_DIR)

    assert [(gpu.name, gpu.unified) for gpu in found.gpus] == [("Orin (nvgpu)", True)]
    assert found.total_vram == found.total_ram


def test_jetson_is_recognised_in_a_container_that_hides_the_device_tree() -> None:
    hidden = {"/proc/device-tree/model": None, "/etc/nv_tegra_release": None, "/dev/nvmap": None}

    found = detect(load("jetson-orin").but(files=hidden), MODELS_DIR)

    assert (found.gpu_vendor, found.gpu_compute_capability) == ("nvidia", "8.7")
    assert found.gpus[0].name == "NVIDIA Jetson AGX Orin Developer Kit"


def test_gb10_shares_ram_even_where_the_driver_tells_a_size() -> None:
    device = RecordedDevice(name="NVIDIA GB10", memory=RecordedMemory(total=1 * GIB, free=0), cc=(12, 1))
    host = load("dgx-spark").but(nvml=RecordedNvml(devices=[device]))

    found = detect(host, MODELS_DIR)

    assert found.gpus[0].unified
    assert found.total_vram == found.total_ram


def test_grace_hopper_keeps_memory_of_its_own() -> None:
    device = RecordedDevice(
        name="NVIDIA GH200", memory=RecordedMemory(total=96 * GIB, free=95 * GIB), cc=(9, 0)
    )
    host = load("dgx-spark").but(nvml=RecordedNvml(devices=[device]))

    found = detect(host, MODELS_DIR)

    assert found.gpus == (Gpu("nvidia", "NVIDIA GH200", 96 * GIB, 95 * GIB, (9, 0)),)


def test_mig_slices_count_instead_of_their_card() -> None:
    card = RecordedDevice(
        name="NVIDIA H200",
        memory=RecordedMemory(total=140 * GIB, free=140 * GIB),
        cc=(9, 0),
        slices=[
            RecordedDevice(
                name=f"NVIDIA H200 MIG {n}", memory=RecordedMemory(total=16 * GIB, free=n * GIB), cc=(0, 0)
            )
            for n in (10, 12)
        ],
    )
    host = load("nvidia-h200").but(nvml=RecordedNvml(devices=[card]))

    found = detect(host, MODELS_DIR)

    assert (found.total_vram, found.available_vram) == (32 * GIB, 22 * GIB)
    assert found.gpu_compute_capability == "9.0"


def test_mig_card_without_a_slice_offers_nothing_and_says_why() -> None:
    card = RecordedDevice(name="H200", memory=RecordedMemory(total=140 * GIB), cc=(9, 0), slices=[])
    host = load("nvidia-h200").but(nvml=RecordedNvml(devices=[card]))

    found = detect(host, MODELS_DIR)

    assert (found.gpu_vendor, found.capability) == ("", "default")
    assert found.problems == (
        "NVIDIA GPU 0 is in MIG mode without a usable slice: make one or turn MIG off.",
    )


def test_arc_whose_driver_is_silent_is_named_but_promises_no_memory() -> None:
    size = "/sys/class/drm/card1/device/tile0/physical_vram_size_bytes"

    found = detect(load("intel-arc").but(files={size: None}), MODELS_DIR)

    assert (found.gpu_vendor, found.total_vram, found.capability) == ("intel", 0, "default")
    assert "does not report how much memory" in found.problems[0]


def test_arc_under_intels_own_i915_tells_its_memory() -> None:
    size = "/sys/class/drm/card1/device/tile0/physical_vram_size_bytes"
    files = {size: None, "/sys/class/drm/card1/lmem_total_bytes": f"{12 * GIB}\n"}

    found = detect(load("intel-arc").but(files=files), MODELS_DIR)

    assert found.total_vram == 12 * GIB


def test_amd_card_without_its_compute_device_is_a_problem_worth_telling() -> None:
    found = detect(load("amd-rx-7900").but(files={"/dev/kfd": None}), MODELS_DIR)

    assert found.gpu_vendor == "amd"
    assert "/dev/kfd" in found.problems[0]


def test_driver_without_nvml_is_a_problem_worth_telling() -> None:
    host = load("two-unlike-nvidia").but(nvml=RecordedNvml(error="Driver/library version mismatch"))

    found = detect(host, MODELS_DIR)

    assert found.gpu_vendor == ""
    assert "NVML cannot be reached: Driver/library version mismatch" in found.problems[0]


def test_nvidia_card_without_a_driver_is_a_problem_worth_telling() -> None:
    host = load("raspberry-pi").but(files={"/sys/class/drm/card2/device/vendor": "0x10de\n"})

    found = detect(host, MODELS_DIR)

    assert found.gpu_vendor == ""
    assert "its driver is not loaded" in found.problems[0]


def test_vendor_with_most_memory_is_chosen() -> None:
    files = {
        "/sys/class/drm/card2/device/vendor": "0x1002\n",
        "/sys/class/drm/card2/device/mem_info_vram_total": f"{512 * MIB}\n",
        "/dev/kfd": "",
    }

    found = detect(load("intel-arc").but(files=files), MODELS_DIR)

    assert {gpu.vendor for gpu in found.gpus} == {"amd", "intel"}
    assert (found.gpu_vendor, found.total_vram) == ("intel", 12 * GIB)
