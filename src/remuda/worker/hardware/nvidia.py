"""NVIDIA GPUs through NVML: whole cards, MIG slices, and chips that share the machine's RAM."""

from collections.abc import Callable
from typing import TypeVar

from remuda.worker.hardware import drm, unified
from remuda.worker.hardware.cpu import architecture
from remuda.worker.hardware.host import Host
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings
from remuda.worker.hardware.nvml import Nvml, NvmlDevice, NvmlFailed, NvmlUnsupported

Answer = TypeVar("Answer")
Default = TypeVar("Default")

_PCI_VENDOR = "0x10de"

# Asking for these first spares machines without an NVIDIA driver the import of pynvml.
_DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
_POSSIBLE_SIGNS = ("/dev/dxg", "/dev/nvmap")  # WSL, whose GPU may be of any make; Tegra boards.


def detect(host: Host, ram: Capacity) -> GpuFindings:
    surely = any(host.exists(sign) for sign in _DRIVER_SIGNS)
    perhaps = host.system == "windows" or any(host.exists(sign) for sign in _POSSIBLE_SIGNS)
    if not surely and not perhaps:
        return GpuFindings(problems=_driverless_cards(host))
    try:
        nvml = host.nvml()
    except NvmlFailed as error:
        if not surely or unified.is_tegra(host):  # Many Tegra systems come without NVML.
            return GpuFindings()
        return GpuFindings(problems=(_unreachable(str(error)),))
    return _ask_nvml(nvml, host, ram)


def _driverless_cards(host: Host) -> tuple[str, ...]:
    if not drm.cards(host, _PCI_VENDOR):
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
        parts = [_part(device, device, host, ram)]
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
    if unified.is_known_chip(name) or (memory.total == 0 and architecture(host) == "arm64"):
        return unified.gpu(name, ram, compute_capability), ""
    problem = "" if memory.total else "does not report its memory."
    return Gpu("nvidia", name, memory.total, memory.available, compute_capability), problem


def _answer(question: Callable[[], Answer], default: Default) -> Answer | Default:
    try:
        return question()
    except NvmlFailed:
        return default
