"""Which builds run on a machine, told from capability words and from the names of builds. Pure.

Peers search whole names for parts of words; here the three that hide inside other words must stand alone, so
that `amd64` is no AMD build, `chip` no HIP build and `intelligence` no Intel one.
"""

import re
from typing import Final

from remuda.gallery.model import GalleryEntry, MachineProfile

DISABLED: Final = "disable"
"""The capability of a machine whose operator wants no filter at all."""

_PREFERENCES: Final = (
    ("nvidia", ("cuda", "vulkan", "cpu")),
    ("amd", ("rocm", "hip", "vulkan", "cpu")),
    ("intel", ("sycl", "intel", "cpu")),
    ("metal", ("metal", "cpu")),
    ("darwin-x86", ("darwin-x86", "cpu")),
    ("vulkan", ("vulkan", "cpu")),
)
_GPU_CAPABILITIES: Final = ("nvidia", "amd", "intel", "metal", "vulkan")


def _alone(*words: str) -> str:
    return rf"(?<![a-z0-9])(?:{'|'.join(words)})(?![a-z0-9])"


# The first that is found decides: what it looks like, what it is called, which capabilities it needs.
_RULES: Final = tuple(
    (re.compile(pattern), hardware, prefixes)
    for pattern, hardware, prefixes in (
        (r"darwin|mlx|metal", "macOS", ("metal", "darwin-x86")),
        (r"l4t", "NVIDIA Jetson (L4T)", ("nvidia-l4t",)),
        (r"cuda|nvidia", "NVIDIA GPUs", ("nvidia",)),
        (rf"rocm|hipblas|{_alone('hip', 'amd', 'amdgpu')}", "AMD GPUs", ("amd",)),
        (rf"sycl|{_alone('intel')}", "Intel GPUs", ("intel",)),
    )
)
_ARCHITECTURES: Final = (
    (re.compile(_alone("amd64", "x86", "x86_64", "x64")), "amd64"),
    (re.compile(_alone("arm64", "aarch64")), "arm64"),
)


def misfit(entry: GalleryEntry, machine: MachineProfile) -> str:
    """Why this build does not run on that machine, to follow its name in a sentence; empty when it does."""
    capability = machine.effective_capability
    if capability == DISABLED:
        return ""
    looks = f"{entry.name} {entry.uri}".lower()
    for pattern, hardware, prefixes in _RULES:
        if pattern.search(looks):
            if capability.startswith(prefixes):
                break
            return f"is for {hardware}, and this machine reports {capability}"
    built_for = architectures(entry)
    if built_for and machine.architecture not in built_for:
        return f"is for {' and '.join(built_for)}, and this machine is {machine.platform}"
    return ""


def architectures(entry: GalleryEntry) -> tuple[str, ...]:
    """Those that the build's name or the last part of its URI spell out; empty: it does not say."""
    looks = f"{entry.name} {entry.uri.rpartition('/')[2]}".lower()
    return tuple(name for pattern, name in _ARCHITECTURES if pattern.search(looks))


def preferred_tokens(capability: str) -> tuple[str, ...]:
    """What to look for in the names of builds that share an alias, best first."""
    return next((tokens for prefix, tokens in _PREFERENCES if capability.startswith(prefix)), ("cpu",))


def unsuited(entry: GalleryEntry, capability: str) -> bool:
    """It needs what this capability does not promise. Whoever asks for it by name gets it all the same."""
    tokens = preferred_tokens(capability)
    looks = f"{entry.name} {entry.uri}".lower()
    return capability != DISABLED and any(
        word in looks and word not in tokens for word in ("vulkan", "metal")
    )


def same_cuda(entry: GalleryEntry, capability: str) -> bool:
    """The build's name has the CUDA release that the machine reports."""
    release = re.search(r"cuda-(\d+)", capability)
    return release is not None and f"cuda{release[1]}" in entry.name.lower().replace("-", "")


def has_gpu(capability: str) -> bool:
    return capability.startswith(_GPU_CAPABILITIES)


def uses_gpu(entry: GalleryEntry) -> bool:
    looks = f"{entry.name} {entry.uri}".lower()
    return "vulkan" in looks or any(pattern.search(looks) for pattern, _, _ in _RULES)
