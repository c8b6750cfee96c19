"""Which build of a backend fits this machine, as one word that galleries know. Pure."""

from dataclasses import dataclass

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
    if told := facts.run_file.strip():
        return told
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
