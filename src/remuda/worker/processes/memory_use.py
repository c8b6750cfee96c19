"""How much memory the processes of models really take, for reports: what a load needs is estimated only until
one has been seen.

Looking is left to a thread: for a large process the kernel walks its page tables, and a driver may hang.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio

from remuda.host import descendants
from remuda.host.bounded_looks import BoundedLook
from remuda.host.descendants import Seen
from remuda.worker.hardware.host import Host, Nvml, NvmlFailed
from remuda.worker.hardware.model import Hardware
from remuda.worker.ports import HardwareSource
from remuda.worker.processes.model import ProcessPhase, ProcessStatus

EVERY_S: Final = 5.0
_LOOK_S: Final = 10.0
_MIB: Final = 1 << 20
_FIGURE: Final = re.compile(r"^(Pss|Pss_File): +([0-9]+) kB$", re.MULTILINE)


class ProcessMemory(NamedTuple):
    """The most that the process of one instance was seen to take, with all it has started."""

    ram_bytes: int = 0
    vram_bytes: int = 0  # Of all GPUs together.

    def most(self, other: "ProcessMemory") -> "ProcessMemory":
        return ProcessMemory(max(self.ram_bytes, other.ram_bytes), max(self.vram_bytes, other.vram_bytes))


UNKNOWN: Final = ProcessMemory()


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What each process takes of the GPUs. None: this machine does not tell it, so nothing is known of what a
    process takes that could use one."""

    by_pid: Mapping[int, int] | None

    def of(self, pids: Collection[int]) -> int | None:
        return None if self.by_pid is None else sum(self.by_pid.get(pid, 0) for pid in pids)


NO_GPU: Final = GpuMemory({})
UNTOLD: Final = GpuMemory(None)


def gpu_memory(hardware: Hardware, nvml: Callable[[], Nvml], alive: Collection[int]) -> GpuMemory:
    """By NVIDIA's own account; other makers have none. In a container the driver may number processes as the
    machine around it does: then some are not among those that are alive here, and none can be told apart."""
    if not hardware.gpus:
        return NO_GPU
    if any(gpu.vendor != "nvidia" or gpu.unified for gpu in hardware.gpus):
        return UNTOLD
    taken = defaultdict[int, int](int)
    try:
        library = nvml()
        for index in range(library.count()):
            for pid, used in library.device(index).processes():
                if used is None or pid not in alive:
                    return UNTOLD
                taken[pid] += used
    except NvmlFailed:
        return UNTOLD
    return GpuMemory(taken)


@dataclass(frozen=True, slots=True)
class VramDifference:
    """What a process takes, by how much more of the GPUs is used since it began: where processes are not told
    apart, and only while it is the only one that has begun or ended since."""

    instances: frozenset[str] = frozenset()  # At the last look.
    used: int | None = None  # Of all GPUs, then.
    alone: str = ""  # The one that began since `base` was seen, and nothing else.
    base: int = 0
    found: Mapping[str, int] = field(default_factory=dict)


def difference(before: VramDifference, instances: Collection[str], used: int | None) -> VramDifference:
    """After another look. What was found of an instance stays for as long as it is there."""
    now = frozenset(instances)
    alone, base = before.alone, before.base
    if now != before.instances:
        begun, ended = now - before.instances, before.instances - now
        only = len(begun) == 1 and not ended and before.used is not None
        alone, base = (min(begun), before.used or 0) if only else ("", 0)
    found = {one: size for one, size in before.found.items() if one in now}
    if alone and used is not None and used > base:
        found[alone] = max(found.get(alone, 0), used - base)
    return VramDifference(now, used, alone, base, found)


def used_vram(hardware: Hardware) -> int | None:
    """None: it is the machine's RAM, or not told."""
    if not hardware.total_vram or any(gpu.unified or gpu.available_vram is None for gpu in hardware.gpus):
        return None
    return hardware.total_vram - hardware.available_vram


def ram_of(rollup: str, *, in_vram: bool) -> int:
    """From a process's `smaps_rollup`: its own share of what it shares. Weights that are mapped from a file
    count where the processor works with them; of those that went to a GPU the file is not needed any more."""
    figures = {name: int(text) << 10 for name, text in _FIGURE.findall(rollup)}
    return figures.get("Pss", 0) - (figures.get("Pss_File", 0) if in_vram else 0)


def use_of(pids: Collection[int], gpu: GpuMemory, host: Host, by_difference: int = 0) -> ProcessMemory:
    """Of one instance. UNKNOWN where the machine does not tell all of it. `by_difference`: its VRAM, where
    processes are not told apart; 0: not known."""
    vram = gpu.of(pids)
    if vram is None and by_difference:
        vram = by_difference
    rollups = [host.read_text(f"/proc/{pid}/smaps_rollup") for pid in pids]
    told = [text for text in rollups if text]
    if vram is None or not told:
        return UNKNOWN
    ram = sum(ram_of(text, in_vram=vram > 0) for text in told)
    return ProcessMemory(_rounded(ram), _rounded(vram))


def _rounded(size: int) -> int:
    return -(-size // _MIB) * _MIB


class MemoryMeter:
    """Looks at every process that is ready, now and then. What it knows is answered from memory."""

    def __init__(
        self,
        replicas: Callable[[], Sequence[ProcessStatus]],
        hardware: HardwareSource,
        host: Host,
        everyone: Callable[[], Sequence[Seen]] = descendants.everyone,
    ) -> None:
        self._replicas = replicas
        self._hardware = hardware
        self._host = host
        self._everyone = everyone
        self._machine: Hardware | None = None
        self._ready: Sequence[ProcessStatus] = ()  # Told to the thread, which must not look at what changes.
        self._difference = VramDifference()
        self._looks = BoundedLook("memory_use", self._look, _LOOK_S)

    def of(self, instance: str) -> ProcessMemory:
        return (self._looks.latest or {}).get(instance, UNKNOWN)

    async def run(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(EVERY_S)

    async def look(self) -> None:
        every = [one for one in self._replicas() if one.pid]
        self._ready = [one for one in every if one.phase is ProcessPhase.READY]
        # With a GPU also while nothing is ready: what was used before a process began is seen only then.
        if not self._ready and self._machine is not None and not self._machine.gpus:
            return
        self._machine = await self._hardware.current()
        instances = {one.instance for one in every}
        self._difference = difference(self._difference, instances, used_vram(self._machine))
        if self._ready:
            await self._looks.refresh()

    def _look(self) -> Mapping[str, ProcessMemory]:
        assert self._machine is not None, "the hardware is asked first"
        everyone = self._everyone()
        gpu = gpu_memory(self._machine, self._host.nvml, {one.pid for one in everyone})
        by_difference = self._difference.found
        uses = {
            one.instance: use_of(_pids(one, everyone), gpu, self._host, by_difference.get(one.instance, 0))
            for one in self._ready
        }
        return {instance: self.of(instance).most(use) for instance, use in uses.items()}


def _pids(replica: ProcessStatus, everyone: Sequence[Seen]) -> set[int]:
    """Its own and those of whatever it has started."""
    known = [one.identity for one in everyone if one.pid == replica.pid]
    instance = replica.instance
    return {one.pid for one in descendants.family(everyone, known, lambda mark: mark.instance == instance)}
