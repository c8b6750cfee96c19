from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.models.config import ModelConfig, Parameters, Template
from remuda.models.gguf import GgufHeader
from remuda.models.gguf_file import (
    GgufModel,
    describe_gguf,
    find_projector,
    name_from,
    projector_left_out,
)
from remuda.models.reading import check_name, read_model, write_model
from tests.unit.models.ggufs import LLAMA, Value, gguf

CHAT = GgufHeader("llama", context_length=131072, has_chat_template=True)


def test_a_chat_model_is_described_by_its_file() -> None:
    config = describe_gguf("SmolLM2-135M-Instruct.Q4_1.gguf", CHAT, "smol/SmolLM2-135M-Instruct.Q4_1.gguf")

    assert config == ModelConfig(
        name="smollm2-135m-instruct",
        backend="llama-cpp",
        parameters=Parameters(model="smol/SmolLM2-135M-Instruct.Q4_1.gguf"),
        context_size=8192,
        template=Template(use_tokenizer_template=True),
        options=("use_jinja:true",),
        known_usecases=("chat", "completion"),
    )


def test_the_description_can_be_kept_in_a_file() -> None:
    config = describe_gguf("a.gguf", CHAT, "a.gguf")

    assert read_model(write_model(config)) == config


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "qwen3-8b"),
        ("models/Meta-Llama-3.1-8B-Instruct-IQ2_XXS.gguf", "meta-llama-3.1-8b-instruct"),
        ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b"),
        ("gemma-3-4b-it-UD-Q4_K_XL.gguf", "gemma-3-4b-it"),
        ("bge-m3-FP16.gguf", "bge-m3"),
        ("phi.f16.gguf", "phi"),
        ("DeepSeek-R1-Q4_K_M-00001-of-00011.gguf", "deepseek-r1"),
        ("C:\\models\\My model (1).gguf", "my-model-1"),
        ("llama-2.gguf", "llama-2"),
        ("ü.gguf", ""),
    ],
)
def test_the_name_is_what_the_file_is_called_without_how_small_it_was_made(file: str, name: str) -> None:
    assert name_from(file) == name


def test_a_file_without_a_name_is_called_as_it_calls_itself() -> None:
    assert describe_gguf("...gguf", GgufHeader("llama", name="A Model"), "x").name == "a-model"
    assert describe_gguf("...gguf", GgufHeader("llama"), "x").name == "llama"


@pytest.mark.parametrize(
    "header",
    [
        GgufHeader("bert"),
        GgufHeader("nomic-bert-moe"),
        GgufHeader("qwen3", pooling_type=3, has_chat_template=True),
    ],
)
def test_a_model_of_vectors_is_for_embeddings(header: GgufHeader) -> None:
    config = describe_gguf("a.gguf", header, "a.gguf")

    assert config.embeddings
    assert config.known_usecases == ("embeddings",)


@pytest.mark.parametrize("header", [GgufHeader("bert", pooling_type=4), GgufHeader("qwen3", label_count=2)])
def test_a_model_of_scores_is_for_reranking(header: GgufHeader) -> None:
    config = describe_gguf("a.gguf", header, "a.gguf")

    assert config.reranking
    assert config.known_usecases == ("rerank",)


def test_a_model_without_a_chat_template_completes() -> None:
    assert describe_gguf("a.gguf", GgufHeader("llama"), "a.gguf").known_usecases == ("completion",)


@pytest.mark.parametrize(
    "header", [GgufHeader("clip"), GgufHeader("clip", kind="mmproj"), GgufHeader("llama", kind="adapter")]
)
def test_what_belongs_to_a_model_is_refused(header: GgufHeader) -> None:
    with pytest.raises(Invalid, match=r"a\.gguf is .* another model"):
        describe_gguf("a.gguf", header, "a.gguf")


@given(st.text())
def test_any_file_name_leads_to_a_name_that_can_be_used(path_name: str) -> None:
    name = describe_gguf(path_name, GgufHeader("llama"), "x").name

    check_name(name)
    assert name == name.lower()


# Projectors.


def projector(path: Path, width: int = 4096, **more: Value) -> Path:
    keys: dict[str, Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
    }
    path.write_bytes(gguf({**keys, "clip.vision.projection_dim": width, **more}).getvalue())
    return path


@pytest.fixture
def seeing(tmp_path: Path) -> GgufModel:
    (tmp_path / "gemma-3-4b-it-Q4_K_M.gguf").write_bytes(gguf(LLAMA).getvalue())
    header = GgufHeader("gemma3", embedding_length=4096, has_chat_template=True)
    return GgufModel(tmp_path / "gemma-3-4b-it-Q4_K_M.gguf", header, (), 0)


def test_a_projector_beside_a_model_is_known_by_its_header(tmp_path: Path, seeing: GgufModel) -> None:
    assert find_projector(seeing) is None
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"<html>")
    (tmp_path / "mmproj-not.gguf").write_bytes(gguf(LLAMA).getvalue())
    projector(tmp_path / "mmproj-of-another.gguf", 1024)
    assert find_projector(seeing) is None
    assert projector_left_out(seeing) == (
        "mmproj-of-another.gguf is not used: it is a projector for models of embedding length 1024, and "
        "gemma-3-4b-it-Q4_K_M.gguf has 4096"
    )
    eyes = projector(tmp_path / "mmproj-model-f16.gguf")
    assert (find_projector(seeing), projector_left_out(seeing)) == (eyes, "")


def test_a_projector_of_the_first_llava_does_not_say_for_which_width_it_is(
    tmp_path: Path, seeing: GgufModel
) -> None:
    eyes = projector(tmp_path / "mmproj-llava.gguf", 768, **{"clip.has_llava_projector": True})
    assert find_projector(seeing) == eyes


def test_of_several_projectors_the_one_with_the_models_name_is_taken(
    tmp_path: Path, seeing: GgufModel
) -> None:
    projector(tmp_path / "mmproj-another-model-f16.gguf")
    own = projector(tmp_path / "mmproj-gemma-3-4b-it-f16.gguf")
    assert find_projector(seeing) == own


def test_a_chat_model_with_a_projector_sees() -> None:
    config = describe_gguf("a.gguf", CHAT, "a.gguf", "mmproj-a.gguf")

    assert (config.mmproj, config.known_usecases) == ("mmproj-a.gguf", ("chat", "completion", "vision"))
    assert describe_gguf("a.gguf", GgufHeader("bert", pooling_type=1), "a.gguf", "mmproj-a.gguf").mmproj == ""
