"""What processes take: counted where the machine tells all of it, and else not at all."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from remuda.wire.process_keys import ProcessKey
from remuda.worker.hardware.host import Nvml, NvmlFailed, SystemHost
from remuda.worker.hardware.model import Gpu, Hardware
from remuda.worker.processes.memory_use import (
    NO_GPU,
    UNKNOWN,
    UNTOLD,
    GpuMemory,
    MemoryMeter,
    ProcessMemory,
    VramDifference,
    difference,
    gpu_memory,
    ram_of,
    use_of,
    used_vram,
)
from remuda.worker.processes.model import ProcessPhase, ProcessStatus, Protocol
from tests.unit.worker.hardware.fixture_host import (
    RecordedDevice,
    RecordedMemory,
    RecordedNvmlDevice,
)

pytestmark = pytest.mark.anyio

MIB = 1 << 20
ROLLUP = "Rss: 9000 kB\nPss: 3072 kB\nPss_Anon: 1024 kB\nPss_File: 2048 kB\n"
CARD = Gpu("nvidia", "a card", 24 << 30, 20 << 30)
MACHINE = Hardware("amd64", "linux", "", 2, 64 << 30, 60 << 30, None, None, (CARD,), "", "nvidia", ())
NO_CARD = replace(MACHINE, gpus=())
READY = ProcessStatus(
    ProcessKey("qwen", 0), "echo", frozenset(), Path(), Protocol.GRPC, ProcessPhase.READY, instance="mine"
)


class Cards:
    """NVML of a machine with these processes on each card."""

    def __init__(self, *cards: list[tuple[int, int | None]], broken: bool = False) -> None:
        self._cards = cards
        self._broken = broken

    def driver_version(self) -> str:
        return "580"

    def count(self) -> int:
        if self._broken:
            raise NvmlFailed("the driver is gone")
        return len(self._cards)

    def device(self, index: int) -> RecordedNvmlDevice:
        told = RecordedDevice(memory=RecordedMemory(), cc=(9, 0), processes=self._cards[index])
        return RecordedNvmlDevice(told)


class Files(SystemHost):
    def __init__(self, **files: str) -> None:
        super().__init__()
        self._files = files

    def read_text(self, path: str) -> str | None:
        return self._files.get(path.split("/")[2])


def told(
    *cards: list[tuple[int, int | None]], machine: Hardware = MACHINE, broken: bool = False
) -> GpuMemory:
    nvml: Nvml = Cards(*cards, broken=broken)
    return gpu_memory(machine, lambda: nvml, {7, 8})


def test_a_process_that_uses_two_cards_is_counted_on_both() -> None:
    assert told([(7, 3 * MIB), (8, MIB)], [(7, 4 * MIB)]).of({7}) == 7 * MIB


def test_a_machine_without_a_gpu_has_none_of_its_memory_in_use() -> None:
    assert told(machine=NO_CARD) == NO_GPU
    assert NO_GPU.of({7}) == 0


@pytest.mark.parametrize(
    "unclear",
    [
        pytest.param(told([(7, None)]), id="the driver does not say how much"),
        pytest.param(told([(4711, MIB)]), id="it counts processes of another namespace"),
        pytest.param(told([], broken=True), id="it does not answer"),
        pytest.param(told([], machine=replace(MACHINE, gpus=(replace(CARD, vendor="amd"),))), id="AMD"),
        pytest.param(told([], machine=replace(MACHINE, gpus=(replace(CARD, unified=True),))), id="unified"),
    ],
)
def test_where_it_is_not_clear_what_a_process_takes_nothing_is_told(unclear: GpuMemory) -> None:
    assert unclear == UNTOLD
    assert use_of({7}, unclear, Files(**{"7": ROLLUP})) == UNKNOWN


def test_mapped_weights_count_where_the_processor_works_with_them() -> None:
    assert ram_of(ROLLUP, in_vram=False) == 3 * MIB
    assert ram_of(ROLLUP, in_vram=True) == MIB


def test_what_a_process_has_started_counts_as_its_own() -> None:
    files = Files(**{"7": ROLLUP, "8": ROLLUP})
    assert use_of({7, 8}, NO_GPU, files) == ProcessMemory(6 * MIB, 0)
    assert use_of({7, 8}, GpuMemory({8: 5 * MIB + 1}), files) == ProcessMemory(2 * MIB, 6 * MIB)


def looks(*seen: tuple[set[str], int | None]) -> dict[str, int]:
    memory = VramDifference()
    for instances, used in seen:
        memory = difference(memory, instances, used)
    return dict(memory.found)


def test_the_only_process_that_has_begun_takes_what_is_used_more() -> None:
    assert looks((set(), 100), ({"a"}, 100), ({"a"}, 700), ({"a"}, 650)) == {"a": 600}
    assert looks(({"a"}, 700), ({"a", "b"}, 720), ({"a", "b"}, 1000)) == {"b": 300}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([(set(), 0), ({"a", "b"}, 0), ({"a", "b"}, 900)], id="two at once"),
        pytest.param([({"a"}, 500), ({"b"}, 0), ({"b"}, 900)], id="another ended meanwhile"),
        pytest.param([({"a"}, 900)], id="it was there at the first look"),
        pytest.param([(set(), None), ({"a"}, 900)], id="what was used before is not known"),
        pytest.param([(set(), 500), ({"a"}, 300)], id="less is used than before"),
    ],
)
def test_of_several_that_begin_or_end_together_nothing_is_told(
    seen: list[tuple[set[str], int | None]],
) -> None:
    assert looks(*seen) == {}


def test_what_was_told_apart_once_stays_while_others_come_and_go() -> None:
    seen: list[tuple[set[str], int | None]] = [(set(), 0), ({"a"}, 600), ({"a", "b"}, 600), ({"a", "b"}, 900)]
    assert looks(*seen) == {"a": 600, "b": 300}
    assert looks(*seen, ({"b"}, 300), ({"b"}, 9000)) == {"b": 300}, "and is not added to by strangers"


def test_difference_stands_in_where_processes_are_not_told_apart() -> None:
    files = Files(**{"7": ROLLUP})
    assert use_of({7}, UNTOLD, files, 5 * MIB) == ProcessMemory(MIB, 5 * MIB)
    assert use_of({7}, GpuMemory({7: 2 * MIB}), files, 5 * MIB) == ProcessMemory(MIB, 2 * MIB)


def test_used_memory_of_gpus_is_known_where_they_have_their_own() -> None:
    assert used_vram(MACHINE) == 4 << 30
    assert used_vram(NO_CARD) is None
    assert used_vram(replace(MACHINE, gpus=(replace(CARD, unified=True),))) is None
    assert used_vram(replace(MACHINE, gpus=(replace(CARD, available_vram=None),))) is None


def test_a_process_that_may_not_be_looked_at_is_unknown() -> None:
    assert use_of({7}, NO_GPU, Files()) == UNKNOWN


class Inventory:
    async def current(self) -> Hardware:
        return NO_CARD


async def test_of_a_real_process_the_most_is_kept_and_it_is_forgotten_with_it() -> None:
    with _process_of(48 * MIB) as pid:
        running = [replace(READY, pid=pid)]
        meter = MemoryMeter(lambda: running, Inventory(), SystemHost())
        await meter.look()
        first = meter.of("mine")
        assert 48 * MIB < first.ram_bytes < 96 * MIB
        await meter.look()
        assert meter.of("mine").ram_bytes >= first.ram_bytes
        running[:] = [replace(READY, pid=pid, instance="next")]
        await meter.look()
    assert meter.of("mine") == UNKNOWN
    assert meter.of("next").ram_bytes > 48 * MIB


@contextmanager
def _process_of(size: int) -> Iterator[int]:
    program = f"held = bytes(range(256)) * {size // 256}; print(len(held), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{size}\n"
        yield process.pid
        process.communicate("over\n")
