"""GPUs, a detector per vendor: NVIDIA's through NVML (whole cards, MIG slices) and Tegra boards without it,
AMD's and Intel's discrete ones from what their drivers show in sysfs, and Apple's, which works in the
machine's RAM.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from remuda.worker.hardware.host import (
    Host,
    Nvml,
    NvmlDevice,
    NvmlFailed,
    NvmlUnsupported,
    read_line,
    read_number,
)
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings
from remuda.worker.hardware.system import architecture, processor_name

# The kernel's list of graphics cards.

_DRM = "/sys/class/drm"
_CARD = re.compile(r"card[0-9]+")  # Not its connectors (card0-HDMI-A-1) nor render nodes.


def drm_cards(host: Host, pci_vendor: str) -> tuple[str, ...]:
    """The folders of this vendor's cards."""
    folders = (f"{_DRM}/{name}" for name in host.list_dir(_DRM) if _CARD.fullmatch(name))
    return tuple(card for card in folders if read_line(host, f"{card}/device/vendor") == pci_vendor)


def drm_name(host: Host, card: str, maker: str) -> str:
    """The product's name where the card tells it, else the maker and the PCI device id."""
    product = read_line(host, f"{card}/device/product_name")
    return product or f"{maker} GPU {read_line(host, f'{card}/device/device')}".rstrip()


# NVIDIA, through NVML.

Answer = TypeVar("Answer")
Default = TypeVar("Default")

_NVIDIA_VENDOR = "0x10de"

# Asking for these first spares machines without an NVIDIA driver the import of pynvml.
_DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
_POSSIBLE_SIGNS = ("/dev/dxg", "/dev/nvmap")  # WSL, whose GPU may be of any make; Tegra boards.


def detect_nvidia(host: Host, ram: Capacity) -> GpuFindings:
    surely = any(host.exists(sign) for sign in _DRIVER_SIGNS)
    perhaps = host.system == "windows" or any(host.exists(sign) for sign in _POSSIBLE_SIGNS)
    if not surely and not perhaps:
        return GpuFindings(problems=_driverless_cards(host))
    try:
        nvml = host.nvml()
    except NvmlFailed as error:
        if not surely or _is_tegra(host):  # Many Tegra systems come without NVML.
            return GpuFindings()
        return GpuFindings(problems=(_unreachable(str(error)),))
    return _ask_nvml(nvml, host, ram)


def _driverless_cards(host: Host) -> tuple[str, ...]:
    if not drm_cards(host, _NVIDIA_VENDOR):
        return ()
    return ("An NVIDIA card is present but its driver is not loaded: install the NVIDIA driver and reboot.",)


def _unreachable(reason: str) -> str:
    return (
        f"The NVIDIA driver is loaded but NVML cannot be reached: {reason}. "
        "In a container, pass the GPUs in (--gpus all); after a driver update, reboot."
    )


def _ask_nvml(nvml: Nvml, host: Host, ram: Capacity) -> GpuFindings:
    try:
        count = nvml.count()
    except NvmlFailed as error:
        return GpuFindings(problems=(f"NVML cannot count the NVIDIA GPUs: {error}.",))
    found = [_device(nvml, index, host, ram) for index in range(count)]
    return GpuFindings(
        gpus=tuple(gpu for one in found for gpu in one.gpus),
        driver_version=_answer(nvml.driver_version, ""),
        problems=tuple(problem for one in found for problem in one.problems),
    )


def _device(nvml: Nvml, index: int, host: Host, ram: Capacity) -> GpuFindings:
    try:
        device = nvml.device(index)
    except NvmlFailed as error:
        return GpuFindings(problems=(f"NVIDIA GPU {index} does not answer: {error}.",))
    slices = _answer(device.slices, None)
    if slices is None:
        whole, problem = _part(device, device, host, ram)
        # Slices go by other names than numbers; and where the owner has chosen, we do not.
        chosen = bool(host.environ.get("CUDA_VISIBLE_DEVICES"))
        parts = [(replace(whole, index=None if chosen else index), problem)]
    else:
        parts = [_part(device, one, host, ram) for one in slices]
    if not parts:
        return GpuFindings(
            problems=(f"NVIDIA GPU {index} is in MIG mode without a usable slice: make one or turn MIG off.",)
        )
    return GpuFindings(
        gpus=tuple(gpu for gpu, _ in parts),
        problems=tuple(f"NVIDIA GPU {index} {problem}" for _, problem in parts if problem),
    )


def _part(device: NvmlDevice, part: NvmlDevice, host: Host, ram: Capacity) -> tuple[Gpu, str]:
    """The GPU that `part` (a slice, or the device itself) amounts to, and what is wrong with it, if so."""
    name = _answer(part.name, "NVIDIA GPU")
    compute_capability = _answer(device.compute_capability, None)
    try:
        memory = part.memory()
    except NvmlUnsupported:
        memory = Capacity(0, 0)
    except NvmlFailed as error:
        return Gpu("nvidia", name, 0, 0, compute_capability), f"does not report its memory: {error}."
    if _shares_ram(name) or (memory.total == 0 and architecture(host) == "arm64"):
        return _unified_gpu(name, ram, compute_capability), ""
    problem = "" if memory.total else "does not report its memory."
    return Gpu("nvidia", name, memory.total, memory.available, compute_capability), problem


def _answer(question: Callable[[], Answer], default: Default) -> Answer | Default:
    try:
        return question()
    except NvmlFailed:
        return default


# NVIDIA chips whose GPU works in the machine's RAM: Tegra boards (Jetson) and the GB10 (DGX Spark).

_SOCS = ("/sys/devices/soc0", "/sys/devices/soc1")  # soc0 may be the firmware's own entry.
_RELEASE_FILE = "/etc/nv_tegra_release"
_BOARD_MODEL = "/proc/device-tree/model"

# The kernel gives a Tegra's chip id in decimal.
_COMPUTE_CAPABILITIES = {
    "33": (5, 3),  # Tegra210: Nano, TX1
    "24": (6, 2),  # Tegra186: TX2
    "25": (7, 2),  # Tegra194: Xavier
    "35": (8, 7),  # Tegra234: Orin
    "38": (11, 0),  # Tegra264: Thor
}


def detect_tegra(host: Host, ram: Capacity) -> GpuFindings:
    """A Tegra board's own GPU, also where NVML is missing."""
    if not _is_tegra(host):
        return GpuFindings()
    soc = _tegra_soc(host)
    name = read_line(host, _BOARD_MODEL) or read_line(host, f"{soc}/machine") or "NVIDIA Tegra"
    compute_capability = _COMPUTE_CAPABILITIES.get(read_line(host, f"{soc}/soc_id"))
    return GpuFindings((_unified_gpu(name, ram, compute_capability),), _l4t_version(host))


def _is_tegra(host: Host) -> bool:
    # Containers hide the device tree and the release file, not the soc entry.
    return (
        _tegra_soc(host) is not None
        or host.exists(_RELEASE_FILE)
        or read_line(host, _BOARD_MODEL).startswith("NVIDIA Jetson")
    )


def _shares_ram(name: str) -> bool:
    """Whether this GPU shares RAM even where its driver says otherwise, as some do for the GB10."""
    return name.endswith("GB10")


def _unified_gpu(name: str, ram: Capacity, compute_capability: tuple[int, int] | None) -> Gpu:
    return Gpu("nvidia", name, ram.total, ram.available, compute_capability, unified=True)


def _tegra_soc(host: Host) -> str | None:
    return next((soc for soc in _SOCS if read_line(host, f"{soc}/family") == "Tegra"), None)


def _l4t_version(host: Host) -> str:
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", host.read_text(_RELEASE_FILE) or "")
    return f"{release[1]}.{release[2]}" if release else ""


# AMD, from what the amdgpu driver shows in sysfs.

_AMD_VENDOR = "0x1002"
_COMPUTE_DEVICE = "/dev/kfd"
_DRIVER_VERSION = "/sys/module/amdgpu/version"  # The kernel's own amdgpu has none, AMD's package does.


def detect_amd(host: Host, ram: Capacity) -> GpuFindings:
    gpus: list[Gpu] = []
    problems: list[str] = []
    for card in drm_cards(host, _AMD_VENDOR):
        name = drm_name(host, card, "AMD")
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


# Intel's discrete GPUs. Integrated graphics have no memory of their own and are not counted.

_INTEL_VENDOR = "0x8086"
_SLOT = re.compile(r"^PCI_SLOT_NAME=[0-9a-f]+:([0-9a-f]{2}):", re.MULTILINE)


def detect_intel(host: Host, ram: Capacity) -> GpuFindings:
    gpus: list[Gpu] = []
    problems: list[str] = []
    for card in drm_cards(host, _INTEL_VENDOR):
        name = drm_name(host, card, "Intel")
        total = _local_memory(host, card)
        if total:
            gpus.append(Gpu("intel", name, total, None))  # How much of it is used is not in sysfs.
        elif _is_plugged_in(host, card):
            gpus.append(Gpu("intel", name, 0, None))
            problems.append(
                f"{name} is a card of its own, but its driver does not report how much memory it has: "
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


# Apple. How much of the RAM Metal lends is not known here.


def detect_apple(host: Host, ram: Capacity) -> GpuFindings:
    if host.system != "darwin" or architecture(host) != "arm64":
        return GpuFindings()
    name = processor_name(host) or "Apple GPU"
    return GpuFindings((Gpu("apple", name, ram.total, ram.available, unified=True),))
