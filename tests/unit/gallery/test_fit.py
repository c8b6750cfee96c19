"""Which builds run where, told from their names."""

import pytest

from remuda.gallery.resolve import misfit, preferred_tokens
from tests.unit.gallery.indexes import concrete, machine


def peers_rule(name: str, uri: str, capability: str) -> bool:
    """What a LocalAI worker accepts: parts of words count."""
    looks = f"{name} {uri}".lower()
    rules = (
        (("darwin", "mlx", "metal"), capability in ("metal", "darwin-x86")),
        (("l4t",), capability.startswith("nvidia-l4t")),
        (("cuda", "nvidia"), capability.startswith("nvidia")),
        (("rocm", "hip", "amd"), capability == "amd"),
        (("sycl", "intel"), capability == "intel"),
    )
    return next((answer for words, answer in rules if any(word in looks for word in words)), True)


PUBLISHED = (
    ("cpu-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-cpu-llama-cpp"),
    ("cuda12-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-gpu-nvidia-cuda-12-llama-cpp"),
    ("cuda13-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-gpu-nvidia-cuda-13-llama-cpp"),
    ("rocm-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-gpu-rocm-hipblas-llama-cpp"),
    ("intel-sycl-f16-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-gpu-intel-sycl-f16-llama-cpp"),
    ("intel-vllm", "quay.io/go-skynet/local-ai-backends:latest-gpu-intel-vllm"),
    ("vulkan-llama-cpp", "quay.io/go-skynet/local-ai-backends:latest-gpu-vulkan-llama-cpp"),
    ("piper", "quay.io/go-skynet/local-ai-backends:latest-piper"),
    ("whisper", "quay.io/go-skynet/local-ai-backends:latest-whisper"),
)
CAPABILITIES = ("default", "cpu", "nvidia", "nvidia-cuda-12", "nvidia-cuda-13", "amd", "intel", "vulkan")


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(("name", "uri"), PUBLISHED)
def test_published_builds_are_judged_as_peers_judge_them(name: str, uri: str, capability: str) -> None:
    fits = not misfit(concrete(name, uri), machine(capability))

    assert fits == peers_rule(name, uri, capability)


@pytest.mark.parametrize("capability", ["nvidia-l4t", "nvidia-l4t-cuda-12"])
@pytest.mark.parametrize("name", ["nvidia-l4t-arm64-llama-cpp", "cuda13-nvidia-l4t-arm64-llama-cpp"])
def test_jetson_builds_fit_jetsons_only(name: str, capability: str) -> None:
    assert misfit(concrete(name), machine(capability, "arm64")) == ""
    assert "is for NVIDIA Jetson" in misfit(concrete(name), machine("nvidia-cuda-12", "arm64"))


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("cpu-whisper", "registry.example/backends:latest-cpu-amd64-whisper"),
        ("cpu-whisper", "registry.example/backends/amd64:latest-cpu-whisper"),
        ("chip-tts", "registry.example/backends:latest-cpu-chip-tts"),
        ("relationship", "registry.example/relationship:latest"),
        ("intelligence", "registry.example/intelligence:latest"),
    ],
)
def test_words_inside_other_words_do_not_fool_us_as_they_fool_peers(name: str, uri: str) -> None:
    entry = concrete(name, uri)

    assert not peers_rule(name, uri, "default")
    assert misfit(entry, machine("default")) == ""
    assert misfit(entry, machine("nvidia-cuda-12")) == ""


@pytest.mark.parametrize("word", ["amd", "amdgpu", "hip", "hipblas", "rocm", "rocm6"])
def test_amd_builds_are_known_by_words_that_stand_alone(word: str) -> None:
    entry = concrete("x", f"registry.example/backends:latest-{word}-x")

    assert "is for AMD GPUs" in misfit(entry, machine("default"))
    assert misfit(entry, machine("amd")) == ""


@pytest.mark.parametrize(
    ("tag", "architecture", "fits"),
    [
        ("latest-cpu-amd64", "amd64", True),
        ("latest-cpu-amd64", "arm64", False),
        ("latest-cpu-x86_64", "arm64", False),
        ("latest-cpu-arm64", "amd64", False),
        ("latest-cpu-aarch64", "arm64", True),
        ("latest-cpu-amd64-arm64", "arm64", True),
        ("latest-cpu", "riscv64", True),
    ],
)
def test_a_build_that_names_its_processor_needs_it(tag: str, architecture: str, fits: bool) -> None:
    reason = misfit(concrete("x", f"registry.example/amd64/x:{tag}"), machine("default", architecture))

    assert (reason == "") == fits
    assert fits or f"this machine is linux/{architecture}" in reason


def test_a_build_for_intel_macs_does_not_fit_the_other_macs() -> None:
    entry = concrete("darwin-x86-x", "registry.example/x:latest-darwin-x86-x")

    assert misfit(entry, machine("darwin-x86", "amd64", "darwin")) == ""
    assert misfit(entry, machine("metal", "arm64", "darwin"))


@pytest.mark.parametrize("name", ["cuda12-x", "rocm-x", "metal-x", "x-arm64"])
def test_an_operator_can_turn_the_filter_off(name: str) -> None:
    assert misfit(concrete(name), machine("disable")) == ""


@pytest.mark.parametrize(
    ("capability", "tokens"),
    [
        ("nvidia-cuda-13", ("cuda", "vulkan", "cpu")),
        ("amd", ("rocm", "hip", "vulkan", "cpu")),
        ("intel", ("sycl", "intel", "cpu")),
        ("metal", ("metal", "cpu")),
        ("darwin-x86", ("darwin-x86", "cpu")),
        ("vulkan", ("vulkan", "cpu")),
        ("default", ("cpu",)),
        ("disable", ("cpu",)),
    ],
)
def test_preferences_are_those_of_peers(capability: str, tokens: tuple[str, ...]) -> None:
    assert preferred_tokens(capability) == tokens
