"""How a model is loaded, from what its options say."""

from pathlib import Path
from typing import Any

import pytest

from remuda.backends.llama_cpp import limits
from remuda.backends.llama_cpp.load_options import model_file, plan_load
from remuda.rpc import backend_pb2 as pb


def settings_of(**options: Any) -> dict[str, object]:
    return dict(plan_load(pb.ModelOptions(**{"ModelFile": "/models/a.gguf", **options})).settings)


def test_what_is_set_is_passed_on_and_what_is_not_is_left_to_the_model() -> None:
    given = settings_of(
        ContextSize=4096, NBatch=256, Threads=3, NGPULayers=99, CacheTypeKey="q8_0", NUMA=True
    )
    assert (given["n_ctx"], given["n_batch"], given["n_ubatch"]) == (4096, 256, 256)
    assert (given["cpuparams.n_threads"], given["cpuparams_batch.n_threads"]) == (3, 3)
    assert (given["n_gpu_layers"], given["cache_type_k"], given["numa"]) == (99, "q8_0", "distribute")
    assert not {"n_ctx", "cpuparams.n_threads", "cache_type_k", "rope_freq_base"} & set(settings_of())


@pytest.mark.parametrize(
    ("mmap", "mlock", "mode"),
    [(False, False, "none"), (True, False, "mmap"), (False, True, "mlock"), (True, True, "mmap_mlock")],
)
def test_memory_is_mapped_and_locked_as_asked(mmap: bool, mlock: bool, mode: str) -> None:
    assert settings_of(MMap=mmap, MLock=mlock)["load_mode"] == mode


@pytest.mark.parametrize(
    ("word", "mode"), [("on", "enabled"), ("off", "disabled"), ("auto", None), ("", None)]
)
def test_flash_attention_is_a_word(word: str, mode: str | None) -> None:
    assert settings_of(FlashAttention=word).get("flash_attn_type") == mode


def test_a_text_to_embed_fits_into_one_batch() -> None:
    assert settings_of(Embeddings=True)["n_ubatch"] == limits.EMBEDDING_BATCH_DEFAULT
    assert settings_of(Embeddings=True, NBatch=512, ContextSize=4096)["n_ubatch"] == 4096
    assert settings_of(Embeddings=True, ContextSize=1 << 20)["n_batch"] == limits.EMBEDDING_BATCH_MAX


def test_a_reranker_scores_and_does_not_embed() -> None:
    plan = plan_load(pb.ModelOptions(ModelFile="/models/a.gguf", Reranking=True))
    assert (plan.settings["embedding"], plan.settings["pooling_type"], plan.embeds) == (True, "rank", False)


def test_options_are_known_by_the_names_others_use() -> None:
    given = settings_of(
        Options=["parallel:6", "cache_reuse:128", "kv_unified:false", "pooling:mean", "sps:0.5"]
    )
    assert (given["n_parallel"], given["n_threads_http"]) == (6, 6 + limits.HTTP_THREADS_SPARE)
    assert (given["n_cache_reuse"], given["kv_unified"], given["pooling_type"]) == (128, False, "mean")
    assert given["slot_prompt_similarity"] == 0.5


def test_what_nobody_knows_is_ignored_by_name() -> None:
    plan = plan_load(pb.ModelOptions(Model="a.gguf", Options=["colour:blue"], Overrides=["x=int:1"]))
    assert plan.ignored == ("Options[colour]", "Overrides")


@pytest.mark.parametrize("option", ["parallel:many", "parallel:0", "pooling:3"])
def test_an_option_of_the_wrong_kind_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=option.partition(":")[0]):
        settings_of(Options=[option])


def test_adapters_have_their_scales_and_stand_below_the_models_folder() -> None:
    given = settings_of(
        ModelPath="/models", LoraAdapters=["a.gguf", "/b.gguf"], LoraScales=[0.5], LoraAdapter="c.gguf"
    )
    assert given["lora_adapters"] == [("/models/a.gguf", 0.5), ("/b.gguf", 1.0), ("/models/c.gguf", 1.0)]


def test_a_small_model_drafts_for_a_large_one() -> None:
    given = settings_of(DraftModel="/models/small.gguf", Options=["draft_max:8"])
    assert given["speculative.draft.mparams.path"] == "/models/small.gguf"
    assert (given["speculative.types"], given["speculative.draft.n_max"]) == (["DRAFT_SIMPLE"], 8)


def test_the_named_file_counts_then_the_one_below_the_models_folder(tmp_path: Path) -> None:
    named, below = tmp_path / "named.gguf", tmp_path / "below.gguf"
    below.touch()
    options = pb.ModelOptions(ModelFile=str(named), ModelPath=str(tmp_path), Model="below.gguf")
    assert model_file(options) == below
    named.touch()
    assert model_file(options) == named
    assert model_file(pb.ModelOptions(ModelFile="/gone.gguf", Model="gone")) == Path("/gone.gguf")


def test_of_a_folder_the_first_model_counts(tmp_path: Path) -> None:
    for name in ("mmproj-a.gguf", "model-00002-of-00002.gguf", "model-00001-of-00002.gguf", "notes.txt"):
        (tmp_path / name).touch()
    assert model_file(pb.ModelOptions(ModelFile=str(tmp_path))).name == "model-00001-of-00002.gguf"


def test_a_folder_without_a_model_and_no_name_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a GGUF"):
        model_file(pb.ModelOptions(ModelFile=str(tmp_path)))
    with pytest.raises(ValueError, match="both empty"):
        model_file(pb.ModelOptions())


def test_the_longest_step_can_be_set() -> None:
    plan = plan_load(pb.ModelOptions(ModelFile="/models/a.gguf", Options=["step_seconds:45"]))
    assert (plan.step_s, plan.ignored) == (45, ())
    for text in ("step_seconds:0", "step_seconds:100000", "step_seconds:true", "step_seconds:soon"):
        with pytest.raises(ValueError, match="needs a number of seconds from 1 to 300"):
            plan_load(pb.ModelOptions(ModelFile="/models/a.gguf", Options=[text]))
