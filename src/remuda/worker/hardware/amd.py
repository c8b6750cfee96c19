"""AMD GPUs from what the amdgpu driver shows in sysfs."""

from remuda.worker.hardware import drm
from remuda.worker.hardware.host import Host, read_line, read_number
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings

_PCI_VENDOR = "0x1002"
_COMPUTE_DEVICE = "/dev/kfd"
_DRIVER_VERSION = "/sys/module/amdgpu/version"  # The kernel's own amdgpu has none, AMD's package does.


def detect(host: Host, ram: Capacity) -> GpuFindings:
    gpus: list[Gpu] = []
    problems: list[str] = []
    for card in drm.cards(host, _PCI_VENDOR):
        name = drm.name(host, card, "AMD")
        total = read_number(host, f"{card}/device/mem_info_vram_total")
        if total is None:
            problems.append(f"{name} does not report its memory: load the amdgpu driver for it.")
            continue
        used = read_number(host, f"{card}/device/mem_info_vram_used")
        gpus.append(Gpu("amd", name, total, None if used is None else total - used))
    if gpus and not host.exists(_COMPUTE_DEVICE):
        problems.append(
            f"An AMD GPU is present but {_COMPUTE_DEVICE} is not, so ROCm cannot use it. "
            "In a container, pass it in (--device /dev/kfd --device /dev/dri)."
        )
    return GpuFindings(tuple(gpus), read_line(host, _DRIVER_VERSION) if gpus else "", tuple(problems))
