import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.models.config import ModelConfig, Parameters
from remuda.models.gguf import GgufHeader
from remuda.models.memory import (
    GPU_PROCESS_BYTES,
    NO_MEMORY,
    PROCESS_BYTES,
    MemoryNeed,
    context_problem,
    context_warning,
    effective_context,
    known_context,
    memory_need,
)

LLAMA_8B = GgufHeader(
    architecture="llama",
    context_length=131072,
    block_count=32,
    embedding_length=4096,
    head_count=32,
    head_counts_kv=(8,),
    key_length=128,
    value_length=128,
    vocab_size=128256,
)
PLAIN = ModelConfig(name="a")
GIB = 1 << 30
headers = st.builds(
    GgufHeader,
    architecture=st.just("llama"),
    block_count=st.integers(0, 200),
    embedding_length=st.integers(0, 20_000),
    head_counts_kv=st.lists(st.integers(0, 128), max_size=3).map(tuple),
    key_length=st.integers(0, 512),
    value_length=st.integers(0, 512),
    vocab_size=st.integers(0, 300_000),
)
configs = st.builds(
    ModelConfig,
    name=st.just("a"),
    cache_type_k=st.sampled_from(["", "q8_0", "q4_0", "f32", "odd"]),
    embeddings=st.booleans(),
    parameters=st.builds(Parameters, batch=st.none() | st.integers(1, 4096)),
)
sizes = st.integers(0, 1 << 42)
contexts = st.integers(1, 1 << 20)
parallels = st.integers(1, 64)


def test_the_cache_of_a_known_model() -> None:
    """128 KiB for each token: 32 layers, 8 heads, 128 numbers, keys and values, two bytes."""
    assert memory_need(LLAMA_8B, 5 * GIB, PLAIN, 8192, 1).kv_cache_bytes == GIB


@pytest.mark.parametrize(
    ("cache_type", "share"), [("f16", 1), ("Q8_0", 34 / 64), ("q4_0", 18 / 64), ("f32", 2)]
)
def test_the_cache_shrinks_with_its_type(cache_type: str, share: float) -> None:
    config = ModelConfig(name="a", cache_type_k=cache_type, cache_type_v=cache_type)

    assert memory_need(LLAMA_8B, 0, config, 8192, 1).kv_cache_bytes == GIB * share


def test_the_rest_of_a_known_model_is_within_what_engines_report() -> None:
    assert 0.4 * GIB < memory_need(LLAMA_8B, 5 * GIB, PLAIN, 8192, 1).overhead_bytes < 1.5 * GIB


def test_of_a_model_that_says_nothing_its_size_is_what_counts() -> None:
    assert memory_need(None, 10 * GIB, PLAIN, 8192, 1).total_bytes == 12 * GIB + (256 << 20)
    assert memory_need(None, 0, PLAIN, 8192, 1) == MemoryNeed()


@given(headers | st.none(), sizes, configs, contexts, parallels, sizes, contexts, parallels)
def test_asking_for_more_never_takes_less(
    header: GgufHeader | None,
    weights: int,
    config: ModelConfig,
    context: int,
    parallel: int,
    more_weights: int,
    more_context: int,
    more_parallel: int,
) -> None:
    need = memory_need(header, weights, config, context, parallel)

    assert need.total_bytes >= weights
    for greater in (
        memory_need(header, weights + more_weights, config, context, parallel),
        memory_need(header, weights, config, context + more_context, parallel),
        memory_need(header, weights, config, context, parallel + more_parallel),
    ):
        assert greater.total_bytes >= need.total_bytes


@pytest.mark.parametrize(
    ("asked", "trained", "context"),
    [
        (None, 2048, 2048),
        (None, 131072, 8192),
        (None, 0, 4096),
        (0, 2048, 2048),
        (-1, 131072, 131072),
        (-1, 0, 4096),
        (32768, 2048, 32768),
    ],
)
def test_the_context_is_what_is_asked_for_or_what_was_trained(
    asked: int | None, trained: int, context: int
) -> None:
    config = ModelConfig(name="a", context_size=asked)

    assert effective_context(config, GgufHeader("llama", context_length=trained)) == context


def test_without_a_header_the_context_has_a_default() -> None:
    assert effective_context(PLAIN, None) == 4096


@pytest.mark.parametrize(("asked", "shown"), [(None, 0), (0, 0), (-1, 0), (512, 512)])
def test_without_a_header_people_are_shown_no_guess(asked: int | None, shown: int) -> None:
    assert known_context(ModelConfig(name="a", context_size=asked), None) == shown


@pytest.mark.parametrize(
    ("asked", "trained", "said"),
    [
        (None, 4096, ""),
        (0, 4096, ""),
        (-1, 4096, ""),
        (8192, 0, ""),
        (32768, 4096, ""),
        (-5, 0, "too few"),
        (1, 4096, "too few"),
        (32769, 4096, "trained for 4096"),
        (1 << 30, 0, "more than any model takes"),
    ],
)
def test_context_that_no_model_has_is_refused(asked: int | None, trained: int, said: str) -> None:
    problem = context_problem(asked, trained)
    assert said in problem
    assert bool(said) == bool(problem)


def test_context_beyond_the_training_is_warned_of() -> None:
    assert "trained for 4096" in context_warning(8192, 4096)
    assert not context_warning(4096, 4096)
    assert not context_warning(8192, 0)


# With a GPU.


def test_a_gpu_takes_the_driver_s_share_beside_the_model() -> None:
    need = memory_need(LLAMA_8B, 5 * GIB, PLAIN, 8192, 1)
    assert need.on_gpu.vram_bytes == need.total_bytes - PROCESS_BYTES + GPU_PROCESS_BYTES
    assert need.on_gpu.ram_bytes == PROCESS_BYTES


def test_layers_that_stay_in_ram_are_charged_there() -> None:
    config = PLAIN.model_copy(update={"gpu_layers": LLAMA_8B.block_count // 2})
    whole, half = (memory_need(LLAMA_8B, 5 * GIB, one, 8192, 1).on_gpu for one in (PLAIN, config))
    assert half.vram_bytes < whole.vram_bytes - 2 * GIB
    assert half.ram_bytes > whole.ram_bytes + 2 * GIB


def test_more_layers_than_there_are_means_all() -> None:
    config = PLAIN.model_copy(update={"gpu_layers": 99_999_999})
    all_of_them, named = (memory_need(LLAMA_8B, 5 * GIB, one, 8192, 1).on_gpu for one in (PLAIN, config))
    assert all_of_them == named


def test_of_what_is_not_known_nothing_is_expected_on_a_gpu_either() -> None:
    assert memory_need(None, 0, PLAIN, 8192, 1).on_gpu == NO_MEMORY
