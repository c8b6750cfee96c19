"""Figures for the wire, derived from any list of GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.hardware.detect import detect
from remuda.worker.hardware.model import Facts, Gpu, Hardware, Vendor, capability
from tests.unit.worker.hardware.fixture_host import MODELS_DIR, load

VENDORS: tuple[Vendor, ...] = ("nvidia", "amd", "intel", "apple", "vulkan", "unknown")

any_gpu = st.builds(
    Gpu,
    vendor=st.sampled_from(VENDORS),
    name=st.just("card"),
    total_vram=st.integers(0, 1 << 40),
    available_vram=st.none() | st.integers(-(1 << 41), 1 << 41),
    compute_capability=st.none() | st.tuples(st.integers(1, 20), st.integers(0, 9)),
    unified=st.booleans(),
)


def machine(*gpus: Gpu) -> Hardware:
    return Hardware(
        architecture="amd64",
        os="linux",
        cpu_model="",
        cpu_cores=1,
        total_ram=0,
        available_ram=0,
        total_disk=None,
        available_disk=None,
        gpus=gpus,
        driver_version="",
        capability="",
        problems=(),
    )


@given(st.lists(any_gpu, max_size=6))
def test_available_vram_is_within_total(gpus: list[Gpu]) -> None:
    found = machine(*gpus)

    assert 0 <= found.available_vram <= found.total_vram


@given(st.lists(any_gpu, max_size=6))
def test_vendor_is_one_that_is_there(gpus: list[Gpu]) -> None:
    there: set[str] = {gpu.vendor for gpu in gpus}

    assert machine(*gpus).gpu_vendor in (there or {""})


@given(st.permutations([Gpu("nvidia", "a", 8, 1), Gpu("amd", "b", 8, 2), Gpu("intel", "c", 8, 3)]))
def test_order_of_the_cards_does_not_matter(gpus: list[Gpu]) -> None:
    assert machine(*gpus).gpu_vendor == "nvidia"


def test_lowest_compute_capability_is_by_number_not_by_letter() -> None:
    found = machine(Gpu("nvidia", "new", 1, 1, (10, 0)), Gpu("nvidia", "old", 1, 1, (9, 0)))

    assert found.gpu_compute_capability == "9.0"


def test_ram_shared_by_two_gpus_counts_once() -> None:
    shared = Gpu("nvidia", "shared", 100, 40, unified=True)

    found = machine(shared, shared)

    assert (found.total_vram, found.available_vram) == (100, 40)


PC = Facts(
    forced="",
    run_file="",
    os="linux",
    architecture="amd64",
    gpu_vendor="",
    total_vram=24 << 30,
    cuda_majors=frozenset(),
)
DOCUMENTED = {
    "metal",
    "darwin-x86",
    "nvidia-l4t-cuda-13",
    "nvidia-l4t-cuda-12",
    "nvidia-l4t",
    "default",
    "nvidia-cuda-13",
    "nvidia-cuda-12",
    "nvidia",
    "amd",
    "intel",
    "vulkan",
}
BOTH = frozenset({12, 13})
TWELVE = frozenset({12})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (replace(PC, forced="disable", run_file="x", os="darwin", architecture="arm64"), "disable"),
        (replace(PC, run_file=" nvidia-cuda-12\n", os="darwin", architecture="arm64"), "nvidia-cuda-12"),
        (replace(PC, run_file="\n"), "default"),
        (replace(PC, os="darwin", architecture="arm64", gpu_vendor="apple"), "metal"),
        (replace(PC, os="darwin", architecture="amd64"), "darwin-x86"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", cuda_majors=BOTH), "nvidia-l4t-cuda-13"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", cuda_majors=TWELVE), "nvidia-l4t-cuda-12"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", total_vram=1), "nvidia-l4t"),
        (replace(PC, cuda_majors=BOTH), "default"),
        (replace(PC, gpu_vendor="nvidia", total_vram=4 << 30, cuda_majors=BOTH), "default"),
        (replace(PC, gpu_vendor="nvidia", total_vram=(4 << 30) + 1, cuda_majors=BOTH), "nvidia-cuda-13"),
        (replace(PC, gpu_vendor="nvidia", cuda_majors=TWELVE), "nvidia-cuda-12"),
        (replace(PC, gpu_vendor="nvidia"), "nvidia"),
        (replace(PC, gpu_vendor="amd", cuda_majors=BOTH), "amd"),
        (replace(PC, gpu_vendor="intel"), "intel"),
        (replace(PC, gpu_vendor="vulkan"), "vulkan"),
        (replace(PC, gpu_vendor="unknown"), "default"),
        (replace(PC, architecture="arm64", gpu_vendor="amd"), "amd"),
    ],
)
def test_first_rule_that_applies_decides(facts: Facts, expected: str) -> None:
    assert capability(facts) == expected


@given(
    st.builds(
        Facts,
        forced=st.just("") | st.text(),
        run_file=st.just("") | st.text(),
        os=st.sampled_from(["linux", "darwin", "windows", "freebsd"]),
        architecture=st.sampled_from(["amd64", "arm64", "riscv64"]),
        gpu_vendor=st.sampled_from(["", "nvidia", "amd", "intel", "apple", "vulkan", "unknown"]),
        total_vram=st.integers(0, 1 << 40),
        cuda_majors=st.frozensets(st.integers(10, 15)),
    )
)
def test_answer_is_documented_or_was_told(facts: Facts) -> None:
    told = facts.forced or facts.run_file.strip()

    assert capability(facts) == told if told else capability(facts) in DOCUMENTED


FORCE = "FORCE_META_BACKEND_CAPABILITY"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({f"LOCALAI_{FORCE}": "theirs"}, "theirs"),
        ({f"REMUDA_{FORCE}": "ours", f"LOCALAI_{FORCE}": "theirs"}, "ours"),
        ({f"REMUDA_{FORCE}": "", f"LOCALAI_{FORCE}": "theirs"}, "theirs"),
        ({f"LOCALAI_{FORCE}_RUN_FILE": "/their/file"}, "from-their-file"),
        (
            {f"REMUDA_{FORCE}_RUN_FILE": "/our/file", f"LOCALAI_{FORCE}_RUN_FILE": "/their/file"},
            "from-our-file",
        ),
        ({}, "from-the-usual-file"),
        ({f"REMUDA_{FORCE}_RUN_FILE": "/no/such/file"}, "default"),
    ],
)
def test_operator_may_force_it_by_our_names_or_by_theirs(environ: dict[str, str], expected: str) -> None:
    host = load("raspberry-pi").but(
        files={
            "/their/file": "from-their-file\n",
            "/our/file": "from-our-file\n",
            "/run/localai/capability": "from-the-usual-file\n",
        }
    )

    assert detect(replace(host, environ=environ), MODELS_DIR).capability == expected
