import json

import pytest

from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.scheduler.model import Place
from remuda.upstreams.grpc.loading import model_options
from tests.support.grpc_calls import config_of

PLACE = Place(models_path="/models", model_file="/models/m.bin")


def _options(config: ModelConfig | None = None, place: Place = PLACE) -> pb.ModelOptions:
    return model_options(config or config_of(), place)


def test_a_model_is_named_as_configured_and_found_where_it_lies() -> None:
    options = _options()

    assert (options.Model, options.ModelFile, options.ModelPath) == ("m.bin", "/models/m.bin", "/models")


def test_what_is_not_configured_has_its_usual_value() -> None:
    options = _options()

    assert (options.ContextSize, options.NBatch, options.NGPULayers) == (4096, 512, 99_999_999)
    assert (options.MMap, options.FlashAttention) == (True, "auto")


@pytest.mark.parametrize(("configured", "there", "told"), [(None, 6, 6), (3, 6, 3), (None, 0, 0), (0, 6, 6)])
def test_threads_are_those_of_the_model_or_else_of_its_place(
    configured: int | None, there: int, told: int
) -> None:
    assert _options(config_of(threads=configured), Place(threads=there)).Threads == told


def test_the_context_is_the_one_found_for_its_place() -> None:
    assert _options(place=Place(context=8192)).ContextSize == 8192


@pytest.mark.parametrize(
    "purpose", [{"embeddings": True}, {"reranking": True}, {"known_usecases": ["score"]}]
)
def test_a_model_that_takes_texts_whole_has_a_batch_as_large_as_its_context(
    purpose: dict[str, object],
) -> None:
    assert _options(config_of(**purpose), Place(context=2048)).NBatch == 2048


def test_a_configured_batch_stands() -> None:
    config = config_of(embeddings=True, parameters={"model": "m.bin", "batch": 64})

    assert _options(config).NBatch == 64


@pytest.mark.parametrize(
    ("backend", "options", "told"),
    [
        ("llama-cpp", [], ["parallel:4"]),
        ("llama-cpp", ["use_jinja:true"], ["use_jinja:true", "parallel:4"]),
        ("llama-cpp", ["n_parallel:2"], ["n_parallel:2"]),
        ("vllm", [], []),
    ],
)
def test_llama_cpp_is_told_how_many_requests_come_at_once(
    backend: str, options: list[str], told: list[str]
) -> None:
    assert list(_options(config_of(backend=backend, options=options, parallel=4)).Options) == told


def test_companions_lie_below_the_folder_of_models() -> None:
    config = config_of(
        mmproj="eyes.gguf",
        draft_model="/draft.gguf",
        lora_adapter="style.gguf",
        lora_adapters=["a.gguf", "/models/b.gguf"],
    )

    options = _options(config)

    assert (options.MMProj, options.DraftModel) == ("/models/eyes.gguf", "/models/draft.gguf")
    assert options.LoraAdapter == "/models/style.gguf"
    assert list(options.LoraAdapters) == ["/models/a.gguf", "/models/b.gguf"]


def test_where_the_folder_is_not_known_no_path_is_told() -> None:
    config = config_of(mmproj="eyes.gguf", draft_model="d.gguf", lora_adapter="l.gguf", lora_adapters=["a"])

    options = model_options(config, Place())

    assert (options.Model, options.ModelFile, options.ModelPath) == ("m.bin", "", "")
    assert (options.MMProj, options.DraftModel, options.LoraAdapter) == ("", "", "")
    assert not options.LoraAdapters


def test_arguments_of_the_engine_are_json() -> None:
    assert json.loads(_options(config_of(engine_args={"seed": 1})).EngineArgs) == {"seed": 1}
    assert _options().EngineArgs == ""


def test_a_configured_number_of_layers_stands_though_it_is_none() -> None:
    assert _options(config_of(gpu_layers=0)).NGPULayers == 0


def test_what_is_configured_reaches_the_backend() -> None:
    config = config_of(
        f16=True,
        mmap=False,
        mmlock=True,
        embeddings=True,
        cache_type_k="q8_0",
        tensor_parallel_size=2,
        dtype="half",
        limit_mm_per_prompt={"image": 3},
    )

    options = _options(config)

    assert (options.F16Memory, options.MMap, options.MLock, options.Embeddings) == (True, False, True, True)
    assert (options.CacheTypeKey, options.TensorParallelSize, options.DType) == ("q8_0", 2, "half")
    assert options.LimitImagePerPrompt == 3
