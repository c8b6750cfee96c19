"""Look at the whole machine, once at start and briefly at every heartbeat. Never raises.

Both functions block, so the inventory calls them in a thread, with a deadline (a wedged GPU driver can hold
NVML for ever), and keeps the last known figures.
"""

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from remuda.core import limits
from remuda.host.bounded_looks import BoundedLook
from remuda.worker.hardware.gpus import detect_amd, detect_apple, detect_intel, detect_nvidia, detect_tegra
from remuda.worker.hardware.host import Host
from remuda.worker.hardware.model import CUDA_MAJORS, Capacity, Facts, Gpu, GpuFindings, Hardware, capability
from remuda.worker.hardware.system import (
    architecture,
    disk_id,
    memory_id,
    processor_name,
    read_disk,
    read_memory,
)

log = structlog.get_logger(__name__)

Value = TypeVar("Value")

_DETECTORS = (
    ("nvidia", detect_nvidia),
    ("unified", detect_tegra),
    ("amd", detect_amd),
    ("intel", detect_intel),
    ("apple", detect_apple),
)

_FORCED = ("REMUDA_FORCE_META_BACKEND_CAPABILITY", "LOCALAI_FORCE_META_BACKEND_CAPABILITY")
_RUN_FILE = tuple(f"{name}_RUN_FILE" for name in _FORCED)
_RUN_FILE_DEFAULT = "/run/localai/capability"


RamBudget = Callable[[int], int | None]
"""The most RAM that models may use of so much; None: all of it."""


def _no_budget(total: int) -> int | None:
    return None


def detect(host: Host, models_dir: Path, budget: RamBudget = _no_budget) -> Hardware:
    """Everything there is to know. What cannot be read stays unknown and is named in `problems`."""
    problems: list[str] = []
    ram = _isolated("memory", partial(_memory, host, budget), None, problems)
    room = _isolated("disk", partial(read_disk, host, models_dir), None, problems)
    cpu_model = _isolated("cpu", partial(processor_name, host), "", problems)
    shared_disk, shared_memory = _shared(host, models_dir, budget)
    found = _look_for_gpus(host, ram or Capacity(0, 0), problems)
    if ram is None:
        problems.append("This machine's memory size cannot be determined.")
    if room is None:
        problems.append(f"The free disk space of {models_dir} cannot be determined.")
    hardware = Hardware(
        architecture=architecture(host),
        os=host.system,
        cpu_model=cpu_model,
        cpu_cores=host.cpu_count,
        total_ram=ram.total if ram else 0,
        available_ram=ram.available if ram else 0,
        total_disk=room.total if room else None,
        available_disk=room.available if room else None,
        gpus=tuple(gpu for one in found for gpu in one.gpus),
        driver_version="",
        capability="",
        problems=(*problems, *(problem for one in found for problem in one.problems)),
        ram_is_budget=ram is not None and budget(ram.total) is not None,
        disk_id=shared_disk,
        memory_id=shared_memory,
    )
    return replace(
        hardware,
        driver_version=_driver_version(hardware.gpu_vendor, found),
        capability=capability(_facts(hardware, host)),
    )


def refresh(hardware: Hardware, host: Host, models_dir: Path, budget: RamBudget = _no_budget) -> Hardware:
    """The same machine with what is free of it now. A figure that cannot be read keeps its last value."""
    ignored: list[str] = []
    ram = _isolated("memory", partial(_memory, host, budget), None, ignored)
    room = _isolated("disk", partial(read_disk, host, models_dir), None, ignored)
    ram = ram or Capacity(hardware.total_ram, hardware.available_ram)
    shared_disk, shared_memory = _shared(host, models_dir, budget)
    return replace(
        hardware,
        total_ram=ram.total,
        available_ram=ram.available,
        total_disk=room.total if room else hardware.total_disk,
        available_disk=room.available if room else hardware.available_disk,
        gpus=_refreshed(hardware.gpus, host, ram),
        disk_id=shared_disk,
        memory_id=shared_memory,
    )


def _shared(host: Host, models_dir: Path, budget: RamBudget) -> tuple[str, str]:
    """The disk and the RAM that other workers of this machine may have as well. A budget is its own."""
    ignored: list[str] = []
    disk = _isolated("disk", partial(disk_id, host, models_dir), "", ignored)
    ram = _isolated("memory", partial(read_memory, host), None, ignored)
    if ram is None or budget(ram.total) is not None:
        return disk, ""
    return disk, _isolated("memory", partial(memory_id, host), "", ignored)


def _memory(host: Host, budget: RamBudget) -> Capacity | None:
    """With a budget, the machine reports no more: models together are given no more, then."""
    ram = read_memory(host)
    most = None if ram is None else budget(ram.total)
    if ram is None or most is None:
        return ram
    return Capacity(min(ram.total, most), min(ram.available, most))


def _look_for_gpus(host: Host, ram: Capacity, problems: list[str]) -> list[GpuFindings]:
    found: list[GpuFindings] = []
    for name, look in _DETECTORS:
        if name == "unified" and found[-1].gpus:
            continue  # NVML has already shown the board's GPU.
        found.append(_isolated(name, partial(look, host, ram), GpuFindings(), problems))
    return found


def _refreshed(gpus: tuple[Gpu, ...], host: Host, ram: Capacity) -> tuple[Gpu, ...]:
    """Cards that are not all there any more keep their last figures: a new look at them is for a restart."""
    cards = tuple(gpu for gpu in gpus if not gpu.unified)
    shared = tuple(
        replace(gpu, total_vram=ram.total, available_vram=ram.available) for gpu in gpus if gpu.unified
    )
    vendors = {gpu.vendor for gpu in cards}
    seen = tuple(
        gpu
        for vendor, look in _DETECTORS
        if vendor in vendors
        for gpu in _isolated(vendor, partial(look, host, ram), GpuFindings(), []).gpus
        if not gpu.unified
    )
    return (*(seen if _identities(seen) == _identities(cards) else cards), *shared)


def _identities(cards: tuple[Gpu, ...]) -> list[Gpu]:
    return [replace(card, available_vram=None) for card in cards]


def _driver_version(vendor: str, found: list[GpuFindings]) -> str:
    return next((one.driver_version for one in found if any(gpu.vendor == vendor for gpu in one.gpus)), "")


def _facts(hardware: Hardware, host: Host) -> Facts:
    run_file = _first_set(host, _RUN_FILE) or _RUN_FILE_DEFAULT
    return Facts(
        forced=_first_set(host, _FORCED),
        run_file=host.read_text(run_file) or "",
        os=hardware.os,
        architecture=hardware.architecture,
        gpu_vendor=hardware.gpu_vendor,
        total_vram=hardware.total_vram,
        cuda_majors=frozenset(major for major in CUDA_MAJORS if host.exists(f"/usr/local/cuda-{major}")),
    )


def _first_set(host: Host, names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := host.environ.get(name, ""))), "")


def _isolated(part: str, read: Callable[[], Value], otherwise: Value, problems: list[str]) -> Value:
    """One part's failure, a bug of ours or a driver's, costs that part only."""
    try:
        return read()
    except Exception as error:
        log.warning("hardware_part_failed", part=part, exc_info=True)
        problems.append(f"Detecting the {part} of this machine failed: {error!r}.")
        return otherwise


_UNKNOWN = Hardware(
    architecture="",
    os=platform.system().lower(),
    cpu_model="",
    cpu_cores=0,
    total_ram=0,
    available_ram=0,
    total_disk=None,
    available_disk=None,
    gpus=(),
    driver_version="",
    capability="",
    problems=("Detecting this machine's hardware takes too long.",),
)


class HardwareInventory:
    """Keeps the last figures: a driver that does not answer costs their freshness, not the heartbeat."""

    def __init__(self, host: Host, models_dir: Path, ram_budget: RamBudget = _no_budget) -> None:
        self._host = host
        self.ram_budget = ram_budget
        self._models_dir = models_dir
        self._looks = BoundedLook("hardware", self._look, limits.HARDWARE_S)

    async def current(self) -> Hardware:
        await self._looks.refresh()
        return self._looks.latest or _UNKNOWN

    def _look(self) -> Hardware:
        known = self._looks.latest
        if known is None:
            return detect(self._host, self._models_dir, self.ram_budget)
        return refresh(known, self._host, self._models_dir, self.ram_budget)
