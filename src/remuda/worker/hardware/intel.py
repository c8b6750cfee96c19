"""Intel's discrete GPUs from sysfs. Integrated graphics have no memory of their own and are not counted."""

import re

from remuda.worker.hardware import drm
from remuda.worker.hardware.host import Host, read_number
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings

_PCI_VENDOR = "0x8086"
_SLOT = re.compile(r"^PCI_SLOT_NAME=[0-9a-f]+:([0-9a-f]{2}):", re.MULTILINE)


def detect(host: Host, ram: Capacity) -> GpuFindings:
    gpus: list[Gpu] = []
    problems: list[str] = []
    for card in drm.cards(host, _PCI_VENDOR):
        name = drm.name(host, card, "Intel")
        total = _local_memory(host, card)
        if total:
            gpus.append(Gpu("intel", name, total, None))  # How much of it is used is not in sysfs.
        elif _is_plugged_in(host, card):
            gpus.append(Gpu("intel", name, 0, None))
            problems.append(
                f"{name} is a card of its own, but its driver does not tell how much memory it has: "
                "use the xe driver, or set REMUDA_FORCE_META_BACKEND_CAPABILITY=intel."
            )
    return GpuFindings(tuple(gpus), problems=tuple(problems))


def _local_memory(host: Host, card: str) -> int:
    """Memory on the card: one figure per tile from the xe driver, one in all from Intel's own i915."""
    tiles = [entry for entry in host.list_dir(f"{card}/device") if re.fullmatch(r"tile[0-9]+", entry)]
    per_tile = (read_number(host, f"{card}/device/{tile}/physical_vram_size_bytes") or 0 for tile in tiles)
    return sum(per_tile) or read_number(host, f"{card}/lmem_total_bytes") or 0


def _is_plugged_in(host: Host, card: str) -> bool:
    """Integrated graphics always sit on PCI bus 0, beside the processor; cards sit behind a bridge."""
    slot = _SLOT.search(host.read_text(f"{card}/device/uevent") or "")
    return slot is not None and slot[1] != "00"
