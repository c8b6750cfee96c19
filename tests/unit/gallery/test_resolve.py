"""A name and a machine to one build, or to a reason that helps."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gallery.index import read_index
from remuda.gallery.model import GalleryEntry, GalleryIndex, MachineProfile, Reading
from remuda.gallery.resolve import ResolvedBuild, Unresolved, candidates, misfit, resolve
from remuda.gallery.sources import REMUDA, shipped_index
from tests.unit.gallery.indexes import NOW, concrete, localai_like, machine, meta, reading, unreadable

SHIPPED = Reading(REMUDA, read_index(shipped_index()), confirmed_at=NOW)


def chosen(readings: Sequence[Reading], name: str, on: MachineProfile) -> ResolvedBuild:
    answer = resolve(readings, name, on)
    assert isinstance(answer, ResolvedBuild), answer
    return answer


def refused(readings: Sequence[Reading], name: str, on: MachineProfile) -> Unresolved:
    answer = resolve(readings, name, on)
    assert isinstance(answer, Unresolved), answer
    return answer


# Meta backends


def test_the_reported_capability_decides() -> None:
    answer = chosen((localai_like(),), "llama-cpp", machine("nvidia-cuda-12"))

    assert answer.entry.name == "cuda12-llama-cpp"
    assert answer.why == "cuda12-llama-cpp, because this machine reports nvidia-cuda-12"
    assert answer.warnings == ()


def test_there_is_no_step_from_one_cuda_to_any_cuda_but_a_warning() -> None:
    answer = chosen((localai_like(),), "llama-cpp", machine("nvidia-cuda-13"))

    assert answer.entry.name == "cpu-llama-cpp"
    assert answer.why.endswith("reports nvidia-cuda-13, for which llama-cpp names its default build")
    assert answer.warnings == (
        "cpu-llama-cpp runs on the CPU and leaves this machine's GPU idle: "
        "llama-cpp has no build for nvidia-cuda-13",
    )


@pytest.mark.parametrize(
    ("builds", "name"),
    [
        ({"default": "a", "cpu": "b"}, "a"),
        ({"cpu": "b", "default": "a"}, "a"),
        ({"cpu": "b"}, "b"),
    ],
)
@pytest.mark.parametrize("capability", ["intel", "disable", ""])
def test_default_comes_before_cpu(builds: dict[str, str], name: str, capability: str) -> None:
    index = reading(meta("m", **builds), concrete("a"), concrete("b"))

    assert chosen((index,), "m", machine(capability)).entry.name == name


def test_a_backend_without_a_build_for_the_machine_says_which_builds_exist() -> None:
    answer = refused((localai_like(),), "vllm", machine("default"))

    assert answer.reason == "vllm has no build for this machine, which reports default"
    assert answer.hint == "it has builds for amd (rocm-vllm), nvidia (cuda12-vllm)"
    assert not answer.retryable


def test_a_build_that_no_gallery_has_is_named() -> None:
    answer = refused((localai_like(),), "vllm", machine("amd"))

    assert answer.reason == "vllm names rocm-vllm for machines that report amd; no gallery has rocm-vllm"
    assert not answer.retryable


def test_a_build_that_an_unreadable_gallery_may_have_can_be_asked_for_later() -> None:
    answer = refused((localai_like(), unreadable("private")), "vllm", machine("amd"))

    assert "gallery private cannot be used: it cannot be reached" in answer.reason
    assert answer.retryable


def test_a_map_that_names_what_does_not_fit_is_not_believed() -> None:
    index = reading(meta("m", default="cuda12-m"), concrete("cuda12-m"))

    assert "cuda12-m is for NVIDIA GPUs" in refused((index,), "m", machine("default")).reason


def test_a_map_that_names_a_meta_backend_goes_nowhere() -> None:
    index = reading(meta("m", default="m"))

    assert "m is no build but a meta backend itself" in refused((index,), "m", machine()).reason


def test_builds_may_stand_in_a_later_gallery() -> None:
    first = reading(meta("m", default="cpu-m"), name="first")
    second = reading(concrete("cpu-m"), name="second")

    assert chosen((first, second), "m", machine()).gallery.name == "second"


def test_a_named_gallery_is_asked_first_for_the_builds_it_names() -> None:
    first = reading(concrete("cpu-m", "first:1"), name="first")
    second = reading(meta("m", default="cpu-m"), concrete("cpu-m", "second:1"), name="second")

    assert chosen((first, second), "m", machine()).entry.uri == "first:1"
    assert chosen((first, second), "second@m", machine()).entry.uri == "second:1"


# Concrete entries


def test_a_build_asked_for_by_name_must_fit_too() -> None:
    answer = refused((localai_like(),), "rocm-llama-cpp", machine("nvidia"))

    assert answer.reason == "rocm-llama-cpp is for AMD GPUs, and this machine reports nvidia"
    assert answer.hint == "these builds fit this machine: cpu-llama-cpp, cuda12-llama-cpp"


def test_a_build_for_another_processor_is_refused_before_anything_is_fetched() -> None:
    index = reading(concrete("x", "registry.example/x:latest-cpu-amd64"))

    assert refused((index,), "x", machine("default", "arm64")).reason == (
        "x is for amd64, and this machine is linux/arm64"
    )


def test_a_development_build_is_had_by_its_name() -> None:
    answer = chosen((localai_like(),), "cuda12-llama-cpp-development", machine("nvidia"))

    assert answer.entry.development


# Aliases


BUILDS = ("cpu-tts", "cuda11-tts", "cuda12-tts", "rocm-tts", "intel-sycl-f16-tts", "vulkan-tts", "metal-tts")
ALIASED = tuple(concrete(name, alias="tts") for name in (*BUILDS, "l4t-tts", "cuda12-tts-development"))


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("default", "cpu-tts"),
        ("nvidia-cuda-12", "cuda12-tts"),
        ("nvidia", "cuda11-tts"),
        ("nvidia-l4t", "l4t-tts"),
        ("amd", "rocm-tts"),
        ("intel", "intel-sycl-f16-tts"),
        ("vulkan", "vulkan-tts"),
        ("metal", "metal-tts"),
        ("disable", "cpu-tts"),
    ],
)
def test_among_builds_of_one_alias_the_machines_kind_comes_first(capability: str, name: str) -> None:
    assert chosen((reading(*ALIASED),), "tts", machine(capability)).entry.name == name


@pytest.mark.parametrize("only", ["vulkan-tts", "metal-tts", "cuda12-tts"])
def test_an_alias_never_gives_a_gpu_build_to_a_machine_without_that_gpu(only: str) -> None:
    answer = refused((reading(concrete(only, alias="tts")),), "tts", machine("default"))

    assert answer.reason == "no build of tts fits this machine, which reports default"
    assert only in answer.hint


def test_an_alias_that_leaves_the_gpu_idle_warns() -> None:
    index = reading(concrete("cpu-tts", alias="tts"), concrete("rocm-tts", alias="tts"))

    assert "leaves this machine's GPU idle" in chosen((index,), "tts", machine("nvidia")).warnings[0]


# Names that are not there


def test_an_unknown_name_brings_up_the_known_ones() -> None:
    answer = refused((localai_like(),), "lama-cpp", machine())

    assert (answer.reason, answer.hint) == (
        "no gallery has a backend called lama-cpp",
        "did you mean llama-cpp or cpu-llama-cpp or rocm-llama-cpp?",
    )


def test_for_an_unknown_name_the_galleries_that_could_not_be_asked_are_named() -> None:
    copy = replace(localai_like("copied"), trouble="connection refused")

    answer = refused((localai_like(), copy), "nosuch", machine())
    assert answer.reason == (
        "no gallery has a backend called nosuch; gallery copied could not be read just now, so an older copy "
        "of it was searched: connection refused"
    )
    assert not answer.retryable

    answer = refused((localai_like(), copy, unreadable("never")), "nosuch", machine())
    assert "gallery never cannot be used: it cannot be reached" in answer.reason
    assert "gallery copied could not be read just now" in answer.reason
    assert answer.reason.startswith("no gallery that could be read has a backend called nosuch; ")
    assert answer.retryable


def test_addresses_of_galleries_are_not_told_with_every_unknown_name() -> None:
    lost = replace(unreadable(), trouble="https://a.example/: refused; https://b.example/: refused")
    answer = refused((lost,), "nosuch", machine())

    assert "gallery localai cannot be used: it cannot be read now; remuda doctor says why" in answer.reason
    assert "://" not in answer.reason


def test_a_similar_name_comes_before_the_trouble_of_galleries() -> None:
    answer = refused((localai_like(), unreadable("never")), "lama-cpp", machine())

    assert answer.reason == (
        "no gallery that could be read has a backend called lama-cpp: did you mean llama-cpp or "
        "cpu-llama-cpp or rocm-llama-cpp? (gallery never cannot be used: it cannot be reached)"
    )
    assert answer.hint == ""


def test_an_unknown_gallery_brings_up_the_known_ones() -> None:
    answer = refused((SHIPPED, localai_like()), "elsewhere@llama-cpp", machine())

    assert answer.hint == "there is no gallery elsewhere; the galleries are remuda, localai"


# What ships with Remuda


@pytest.mark.parametrize("capability", ["default", "cpu", "darwin-x86", "disable", ""])
def test_without_a_gpu_the_built_in_engine_serves_silently(capability: str) -> None:
    answer = chosen((SHIPPED, localai_like()), "llama-cpp", machine(capability))

    assert (answer.entry.uri, answer.warnings) == ("builtin:llama-cpp", ())


def test_gpus_get_the_published_builds_while_their_gallery_can_be_read() -> None:
    answer = chosen((SHIPPED, localai_like()), "llama-cpp", machine("nvidia-cuda-12"))

    assert (answer.gallery.name, answer.entry.name) == ("localai", "cuda12-llama-cpp")
    assert answer.warnings == ()


@pytest.mark.parametrize("capability", ["nvidia", "nvidia-cuda-13", "amd", "intel", "vulkan", "metal"])
def test_with_no_other_gallery_gpus_get_the_built_in_engine_and_a_warning(capability: str) -> None:
    answer = chosen((SHIPPED, unreadable()), "llama-cpp", machine(capability))

    assert answer.entry.builtin
    assert "runs on the CPU" in answer.warnings[0]
    assert "gallery localai cannot be used" in answer.warnings[0]


def test_the_other_gallerys_entry_can_still_be_named() -> None:
    answer = chosen((SHIPPED, localai_like()), "localai@llama-cpp", machine("default"))

    assert answer.entry.name == "cpu-llama-cpp"


def test_echo_is_there_for_whoever_asks() -> None:
    assert chosen((SHIPPED,), "echo", machine("nvidia")).uris == ("builtin:echo",)


# What `remuda backends show` tells


def test_candidates_say_which_one_and_why_not_the_others() -> None:
    shown = {each.name: each for each in candidates((localai_like(),), "llama-cpp", machine("nvidia"))}

    assert [each.name for each in shown.values() if each.chosen] == ["cuda12-llama-cpp"]
    assert shown["cuda12-llama-cpp"].capabilities == ("nvidia", "nvidia-cuda-12")
    assert shown["cuda12-llama-cpp"].why == "cuda12-llama-cpp, because this machine reports nvidia"
    assert shown["rocm-llama-cpp"].why == "rocm-llama-cpp is for AMD GPUs, and this machine reports nvidia"
    assert shown["cpu-llama-cpp"].why == "another comes first for a machine that reports nvidia"


def test_candidates_include_builds_that_no_gallery_has() -> None:
    shown = {each.name: each for each in candidates((localai_like(),), "vllm", machine("nvidia"))}

    assert shown["rocm-vllm"].found is None
    assert shown["rocm-vllm"].why == "no gallery has rocm-vllm"


@pytest.mark.parametrize(("name", "count"), [("tts", len(ALIASED)), ("cpu-tts", 1), ("nothing", 0)])
def test_candidates_of_aliases_and_single_builds(name: str, count: int) -> None:
    shown = candidates((reading(*ALIASED),), name, machine())

    assert len(shown) == count
    assert sum(each.chosen for each in shown) == min(count, 1)


# Whatever the index


WORDS = (
    "cpu",
    "cuda12",
    "cuda13",
    "rocm",
    "hip",
    "amd64",
    "arm64",
    "sycl",
    "intel",
    "vulkan",
    "metal",
    "l4t",
    "x",
)
NAMES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("-".join)
CAPABILITIES = st.sampled_from(
    (
        "",
        "default",
        "cpu",
        "nvidia",
        "nvidia-cuda-12",
        "nvidia-l4t",
        "amd",
        "intel",
        "vulkan",
        "metal",
        "disable",
    )
)
MACHINES = st.builds(
    MachineProfile,
    st.just("linux"),
    st.sampled_from(("amd64", "arm64")),
    CAPABILITIES,
    st.sampled_from(("", "amd")),
    st.just(1 << 34),
)
CONCRETES = NAMES.flatmap(lambda name: st.sampled_from((concrete(name), concrete(name, alias="m"))))
METAS = st.dictionaries(CAPABILITIES.filter(bool), NAMES, min_size=1).map(
    lambda named: GalleryEntry(name="m", line=1, alias="m", capabilities=tuple(named.items()))
)
INDEXES = st.lists(CONCRETES | METAS, max_size=12, unique_by=lambda entry: entry.name)
ASKED = st.just("m") | NAMES


@given(INDEXES.flatmap(lambda index: st.tuples(st.just(index), st.permutations(index))), ASKED, MACHINES)
def test_the_order_of_an_index_does_not_matter(
    orders: tuple[list[GalleryEntry], list[GalleryEntry]], name: str, on: MachineProfile
) -> None:
    one, other = (resolve((reading(*entries),), name, on) for entries in orders)

    assert one == other


@given(INDEXES, ASKED, st.sampled_from(("amd64", "arm64")))
def test_a_machine_without_gpu_never_gets_a_gpu_build(
    entries: list[GalleryEntry], name: str, processor: str
) -> None:
    answer = resolve((reading(*entries),), name, machine("default", processor))

    if isinstance(answer, ResolvedBuild):
        words = set(answer.entry.name.split("-"))
        assert not words & {"cuda12", "cuda13", "rocm", "hip", "sycl", "intel", "metal", "l4t"}
        assert processor in words or not words & {"amd64", "arm64"}


@given(INDEXES, INDEXES, ASKED, MACHINES)
def test_what_is_chosen_is_a_build_that_fits(
    first: list[GalleryEntry], second: list[GalleryEntry], name: str, on: MachineProfile
) -> None:
    readings = (reading(*first, name="first"), reading(*second, name="second"))
    answer = resolve(readings, name, on)

    if isinstance(answer, ResolvedBuild):
        assert answer.entry.uri
        assert misfit(answer.entry, on) == ""
        assert answer.why.startswith(answer.entry.name)
    else:
        assert answer.reason


@given(INDEXES, INDEXES, ASKED, MACHINES)
def test_a_later_gallery_never_takes_over_a_name(
    first: list[GalleryEntry], second: list[GalleryEntry], name: str, on: MachineProfile
) -> None:
    alone = resolve((reading(*first, name="first"),), name, on)
    together = resolve((reading(*first, name="first"), reading(*second, name="second")), name, on)

    named = next((entry for entry in first if entry.name == name), None)
    if isinstance(alone, ResolvedBuild) and named is not None:
        assert together == alone


@given(INDEXES, ASKED, MACHINES)
def test_candidates_agree_with_the_choice(entries: list[GalleryEntry], name: str, on: MachineProfile) -> None:
    index = reading(*entries)
    answer = resolve((index,), name, on)

    picked = [each.name for each in candidates((index,), name, on) if each.chosen]

    assert picked == ([answer.entry.name] if isinstance(answer, ResolvedBuild) else [])


@given(st.text(max_size=30), MACHINES)
def test_any_name_gets_an_answer(name: str, on: MachineProfile) -> None:
    assert isinstance(resolve((SHIPPED, localai_like()), name, on), (ResolvedBuild, Unresolved))


def test_an_empty_gallery_changes_nothing() -> None:
    empty = replace(localai_like("empty"), index=GalleryIndex(()))

    assert chosen((empty, localai_like()), "llama-cpp", machine("amd")).entry.name == "rocm-llama-cpp"
