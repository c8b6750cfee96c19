"""Builders for galleries in tests."""

from datetime import UTC, datetime

from remuda.gallery.index import read_index
from remuda.gallery.model import Gallery, GalleryEntry, GalleryIndex, MachineProfile, Reading

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

LOCALAI_LIKE = b"""
- &llamacpp
  name: "llama-cpp"
  alias: "llama-cpp"
  license: mit
  capabilities:
    default: "cpu-llama-cpp"
    nvidia: "cuda12-llama-cpp"
    nvidia-cuda-12: "cuda12-llama-cpp"
    amd: "rocm-llama-cpp"
    metal: "metal-llama-cpp"
- !!merge <<: *llamacpp
  name: "cpu-llama-cpp"
  uri: "quay.io/go-skynet/local-ai-backends:latest-cpu-llama-cpp"
- !!merge <<: *llamacpp
  name: "cuda12-llama-cpp"
  uri: "quay.io/go-skynet/local-ai-backends:latest-gpu-nvidia-cuda-12-llama-cpp"
  mirrors:
    - localai/localai-backends:latest-gpu-nvidia-cuda-12-llama-cpp
- !!merge <<: *llamacpp
  name: "cuda12-llama-cpp-development"
  uri: "quay.io/go-skynet/local-ai-backends:master-gpu-nvidia-cuda-12-llama-cpp"
- !!merge <<: *llamacpp
  name: "rocm-llama-cpp"
  uri: "quay.io/go-skynet/local-ai-backends:latest-gpu-rocm-hipblas-llama-cpp"
- !!merge <<: *llamacpp
  name: "metal-llama-cpp"
  uri: "quay.io/go-skynet/local-ai-backends:latest-metal-darwin-arm64-llama-cpp"
- &vllm
  name: "vllm"
  alias: "vllm"
  capabilities: {nvidia: "cuda12-vllm", amd: "rocm-vllm"}
- <<: *vllm
  name: "cuda12-vllm"
  uri: "quay.io/go-skynet/local-ai-backends:latest-gpu-nvidia-cuda-12-vllm"
"""


def gallery(name: str = "localai") -> Gallery:
    return Gallery(name=name, url=f"https://{name}.example/index.yaml")


def reading(*entries: GalleryEntry, name: str = "localai") -> Reading:
    return Reading(gallery(name), GalleryIndex(entries), confirmed_at=NOW)


def localai_like(name: str = "localai") -> Reading:
    return Reading(gallery(name), read_index(LOCALAI_LIKE), confirmed_at=NOW)


def unreadable(name: str = "localai") -> Reading:
    return Reading(gallery(name), trouble="it cannot be reached")


def concrete(name: str, uri: str = "", alias: str = "", tags: tuple[str, ...] = ()) -> GalleryEntry:
    uri = uri or f"registry.example/backends:latest-{name}"
    return GalleryEntry(name=name, line=1, alias=alias, uri=uri, tags=tags)


def meta(name: str, **builds: str) -> GalleryEntry:
    """Capabilities are written with underscores: nvidia_cuda_12."""
    named = tuple((capability.replace("_", "-"), build) for capability, build in builds.items())
    return GalleryEntry(name=name, line=1, alias=name, capabilities=named)


def machine(capability: str = "default", architecture: str = "amd64", os: str = "linux") -> MachineProfile:
    return MachineProfile(os=os, architecture=architecture, capability=capability)
