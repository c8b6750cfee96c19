"""The documented order of rules, one example each, and that nothing else can come out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.hardware.capability import Facts, capability
from remuda.worker.hardware.detect import detect
from tests.unit.worker.hardware.fixture_host import MODELS_DIR, load

PC = Facts(
    forced="",
    run_file="",
    os="linux",
    architecture="amd64",
    gpu_vendor="",
    total_vram=24 << 30,
    cuda_majors=frozenset(),
)
DOCUMENTED = {
    "metal",
    "darwin-x86",
    "nvidia-l4t-cuda-13",
    "nvidia-l4t-cuda-12",
    "nvidia-l4t",
    "default",
    "nvidia-cuda-13",
    "nvidia-cuda-12",
    "nvidia",
    "amd",
    "intel",
    "vulkan",
}
BOTH = frozenset({12, 13})
TWELVE = frozenset({12})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (replace(PC, forced="disable", run_file="x", os="darwin", architecture="arm64"), "disable"),
        (replace(PC, run_file=" nvidia-cuda-12\n", os="darwin", architecture="arm64"), "nvidia-cuda-12"),
        (replace(PC, run_file="\n"), "default"),
        (replace(PC, os="darwin", architecture="arm64", gpu_vendor="apple"), "metal"),
        (replace(PC, os="darwin", architecture="amd64"), "darwin-x86"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", cuda_majors=BOTH), "nvidia-l4t-cuda-13"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", cuda_majors=TWELVE), "nvidia-l4t-cuda-12"),
        (replace(PC, architecture="arm64", gpu_vendor="nvidia", total_vram=1), "nvidia-l4t"),
        (replace(PC, cuda_majors=BOTH), "default"),
        (replace(PC, gpu_vendor="nvidia", total_vram=4 << 30, cuda_majors=BOTH), "default"),
        (replace(PC, gpu_vendor="nvidia", total_vram=(4 << 30) + 1, cuda_majors=BOTH), "nvidia-cuda-13"),
        (replace(PC, gpu_vendor="nvidia", cuda_majors=TWELVE), "nvidia-cuda-12"),
        (replace(PC, gpu_vendor="nvidia"), "nvidia"),
        (replace(PC, gpu_vendor="amd", cuda_majors=BOTH), "amd"),
        (replace(PC, gpu_vendor="intel"), "intel"),
        (replace(PC, gpu_vendor="vulkan"), "vulkan"),
        (replace(PC, gpu_vendor="unknown"), "default"),
        (replace(PC, architecture="arm64", gpu_vendor="amd"), "amd"),
    ],
)
def test_first_rule_that_applies_decides(facts: Facts, expected: str) -> None:
    assert capability(facts) == expected


@given(
    st.builds(
        Facts,
        forced=st.just("") | st.text(),
        run_file=st.just("") | st.text(),
        os=st.sampled_from(["linux", "darwin", "windows", "freebsd"]),
        architecture=st.sampled_from(["amd64", "arm64", "riscv64"]),
        gpu_vendor=st.sampled_from(["", "nvidia", "amd", "intel", "apple", "vulkan", "unknown"]),
        total_vram=st.integers(0, 1 << 40),
        cuda_majors=st.frozensets(st.integers(10, 15)),
    )
)
def test_answer_is_documented_or_was_told(facts: Facts) -> None:
    told = facts.forced or facts.run_file.strip()

    assert capability(facts) == told if told else capability(facts) in DOCUMENTED


FORCE = "FORCE_META_BACKEND_CAPABILITY"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({f"LOCALAI_{FORCE}": "theirs"}, "theirs"),
        ({f"REMUDA_{FORCE}": "ours", f"LOCALAI_{FORCE}": "theirs"}, "ours"),
        ({f"REMUDA_{FORCE}": "", f"LOCALAI_{FORCE}": "theirs"}, "theirs"),
        ({f"LOCALAI_{FORCE}_RUN_FILE": "/their/file"}, "from-their-file"),
        (
            {f"REMUDA_{FORCE}_RUN_FILE": "/our/file", f"LOCALAI_{FORCE}_RUN_FILE": "/their/file"},
            "from-our-file",
        ),
        ({}, "from-the-usual-file"),
        ({f"REMUDA_{FORCE}_RUN_FILE": "/no/such/file"}, "default"),
    ],
)
def test_operator_may_force_it_by_our_names_or_by_theirs(environ: dict[str, str], expected: str) -> None:
    host = load("raspberry-pi").but(
        files={
            "/their/file": "from-their-file\n",
            "/our/file": "from-our-file\n",
            "/run/localai/capability": "from-the-usual-file\n",
        }
    )

    assert detect(replace(host, environ=environ), MODELS_DIR).capability == expected
