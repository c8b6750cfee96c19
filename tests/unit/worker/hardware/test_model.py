"""Figures for the wire, derived from any list of GPUs."""

from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.hardware.model import Gpu, Hardware, Vendor

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
