"""What a machine has, as plain values, and which build of a backend fits it, as one word that galleries
know. Sizes are bytes. The figures for the wire are derived here. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel", "apple", "vulkan", "unknown"]

_VENDORS_BY_PREFERENCE: tuple[Vendor, ...] = ("nvidia", "amd", "intel", "apple", "vulkan", "unknown")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of something there is, and how much of it could be had now."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Gpu:
    vendor: Vendor
    name: str
    total_vram: int  # 0: the driver does not say.
    available_vram: int | None  # None: the driver does not say.
    compute_capability: tuple[int, int] | None = None  # NVIDIA only.
    unified: bool = False  # It has no memory of its own: its VRAM is the machine's RAM.
    # By which its driver's libraries call it; None: it cannot be chosen alone.
    index: int | None = field(default=None, compare=False)

    @property
    def free_vram(self) -> int:
        """What may be used now: all of it when usage is unknown, within 0..total whatever the driver says."""
        if self.available_vram is None:
            return self.total_vram
        return max(0, min(self.available_vram, self.total_vram))


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """One detector's account: GPUs of its kind, and plain sentences on what keeps them from being used."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    architecture: str  # As in OCI platforms: amd64, arm64.
    os: str  # linux, darwin, windows.
    cpu_model: str
    cpu_cores: int
    total_ram: int  # 0: unknown.
    available_ram: int
    total_disk: int | None  # Of the file system that holds the models; None: unknown.
    available_disk: int | None  # 0 is a real value: a full disk.
    gpus: tuple[Gpu, ...]
    driver_version: str
    capability: str
    problems: tuple[str, ...]  # Plain sentences for the machine's owner.
    ram_is_budget: bool = False  # `total_ram` is what models may use together, not what is built in.
    disk_id: str = ""  # The same for all workers on this file system; empty: not known.
    memory_id: str = ""  # For all that share all of the machine's RAM.

    @property
    def gpu_vendor(self) -> Vendor | Literal[""]:
        """The vendor whose GPUs hold the most memory: a backend build serves one vendor only."""
        present = [vendor for vendor in _VENDORS_BY_PREFERENCE if any(g.vendor == vendor for g in self.gpus)]
        return max(present, key=lambda vendor: _pooled(_of(vendor, self.gpus)).total, default="")

    @property
    def total_vram(self) -> int:
        return _pooled(_of(self.gpu_vendor, self.gpus)).total

    @property
    def available_vram(self) -> int:
        return _pooled(_of(self.gpu_vendor, self.gpus)).available

    @property
    def separate_gpus(self) -> tuple[Gpu, ...]:
        """Several GPUs with memories of their own, of the vendor whose builds run here, each of which can be
        given to a process alone. Empty where all memory is one, or where one cannot be told apart."""
        chosen = _of(self.gpu_vendor, self.gpus)
        apart = all(gpu.index is not None and gpu.total_vram and not gpu.unified for gpu in chosen)
        return chosen if apart and len(chosen) > 1 else ()

    @property
    def gpu_compute_capability(self) -> str:
        """The lowest among the chosen GPUs: what is built for it runs on all of them."""
        known = [gpu.compute_capability for gpu in _of(self.gpu_vendor, self.gpus) if gpu.compute_capability]
        if not known:
            return ""
        major, minor = min(known)
        return f"{major}.{minor}"


def _of(vendor: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus if gpu.vendor == vendor)


def _pooled(gpus: Sequence[Gpu]) -> Capacity:
    """Memory of all these GPUs together. Unified ones share the same RAM, which counts once."""
    own = [gpu for gpu in gpus if not gpu.unified]
    shared = max((gpu for gpu in gpus if gpu.unified), key=lambda gpu: gpu.total_vram, default=None)
    pools = own if shared is None else [*own, shared]
    return Capacity(sum(gpu.total_vram for gpu in pools), sum(gpu.free_vram for gpu in pools))


_VRAM_TOO_SMALL = 4 << 30
_VENDORS_WITH_BUILDS = frozenset({"nvidia", "amd", "intel", "vulkan"})
CUDA_MAJORS = (13, 12)  # Newest first.


@dataclass(frozen=True, slots=True)
class Facts:
    forced: str  # What the operator insists on; empty: nothing.
    run_file: str  # What an image says it was built for; empty: nothing.
    os: str
    architecture: str
    gpu_vendor: str
    total_vram: int
    cuda_majors: frozenset[int]  # Those with a /usr/local/cuda-NN.


def capability(facts: Facts) -> str:
    """The first rule that applies decides; peers use the same rules in the same order."""
    if facts.forced:
        return facts.forced
    if configured := facts.run_file.strip():
        return configured
    match facts.os, facts.architecture, facts.gpu_vendor:
        case "darwin", "arm64", _:
            return "metal"
        case "darwin", "amd64", _:
            return "darwin-x86"
        case "linux", "arm64", "nvidia":
            return _with_cuda("nvidia-l4t", facts.cuda_majors)
    if facts.gpu_vendor not in _VENDORS_WITH_BUILDS or facts.total_vram <= _VRAM_TOO_SMALL:
        return "default"
    if facts.gpu_vendor == "nvidia":
        return _with_cuda("nvidia", facts.cuda_majors)
    return facts.gpu_vendor


def _with_cuda(prefix: str, installed: frozenset[int]) -> str:
    newest = next((major for major in CUDA_MAJORS if major in installed), None)
    return prefix if newest is None else f"{prefix}-cuda-{newest}"
