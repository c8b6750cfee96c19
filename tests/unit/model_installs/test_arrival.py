"""How a model is served, by what has come of it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from remuda.core.errors import Invalid
from remuda.hubs.model import ModelHints
from remuda.model_installs.arrival import Arrival, described, projector_left_out, template_fault
from remuda.models.config import ModelConfig
from remuda.models.model_folder import folder_backends
from tests.support.models import tiny_model, tiny_reranker
from tests.unit.models.ggufs import gguf

TINY = tiny_model().read_bytes()
ADAPTER = gguf(
    {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
).getvalue()
EYES = gguf(
    {"general.architecture": "clip", "general.type": "mmproj", "clip.has_vision_encoder": True}
).getvalue()
EARS = gguf(
    {"general.architecture": "clip", "general.type": "mmproj", "clip.has_audio_encoder": True}
).getvalue()


def _weights(numbers: int = 4) -> bytes:
    """A safetensors file of one tensor."""
    head = {"w": {"dtype": "F16", "shape": [numbers], "data_offsets": [0, 2 * numbers]}}
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 2 * numbers


def arrived(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    overlay: str = "",
    roles: Mapping[str, str] | None = None,
    hints: ModelHints | None = None,
) -> ModelConfig:
    """Files of the model m, as they lie below its own folder."""
    for path, content in files.items():
        place = folder / "m" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    named = {f"m/{path}": role for path, role in (roles or {}).items()}
    paths = [f"m/{path}" for path in files]
    return described(Arrival("m", folder, paths, named, hints or ModelHints(), overlay))


def test_adapters_and_drafts_belong_to_the_model(tmp_path: Path) -> None:
    files = {"a.gguf": TINY, "b-adapter.gguf": ADAPTER, "c-draft.gguf": TINY, "d.gguf": ADAPTER}

    config = arrived(tmp_path, files, roles={"b-adapter.gguf": "adapter", "c-draft.gguf": "draft"})

    assert config.file == "m/a.gguf"
    assert config.lora_adapters == ("m/b-adapter.gguf", "m/d.gguf")
    assert config.draft_model == "m/c-draft.gguf"


@pytest.mark.parametrize(
    ("projector", "senses"),
    [(EYES, {"vision"}), (EARS, {"audio"}), (gguf({"general.architecture": "clip"}).getvalue(), {"vision"})],
)
def test_what_a_model_perceives_is_read_from_its_projector(
    tmp_path: Path, projector: bytes, senses: set[str]
) -> None:
    config = arrived(tmp_path, {"a.gguf": TINY, "mmproj.gguf": projector})

    assert config.mmproj == "m/mmproj.gguf"
    assert set(config.known_usecases) & {"vision", "audio"} == senses


def eyes_for(width: int) -> bytes:
    return gguf(
        {"general.architecture": "clip", "general.type": "mmproj", "clip.vision.projection_dim": width}
    ).getvalue()


def test_a_projector_of_another_model_is_left_out_with_a_note(tmp_path: Path) -> None:
    config = arrived(tmp_path, {"a.gguf": TINY, "mmproj.gguf": eyes_for(65536)})
    arrival = Arrival("m", tmp_path, ["m/a.gguf", "m/mmproj.gguf"])

    assert (config.mmproj, "vision" in config.known_usecases) == ("", False)
    assert projector_left_out(arrival, config).startswith(
        "mmproj.gguf is not used: it is a projector for models of embedding length 65536, and a.gguf has "
    )


def test_of_several_projectors_the_one_that_fits_is_taken(tmp_path: Path) -> None:
    config = arrived(tmp_path, {"a.gguf": TINY, "mmproj-a.gguf": eyes_for(65536), "mmproj-z.gguf": EYES})
    arrival = Arrival("m", tmp_path, ["m/a.gguf", "m/mmproj-a.gguf", "m/mmproj-z.gguf"])

    assert config.mmproj == "m/mmproj-z.gguf"
    assert projector_left_out(arrival, config) == ""


def test_several_models_are_one_if_the_gallery_says_which(tmp_path: Path) -> None:
    files = {"a.gguf": TINY, "b.gguf": tiny_reranker().read_bytes()}

    with pytest.raises(Invalid, match="several models"):
        arrived(tmp_path, files)
    config = arrived(tmp_path, files, overlay="parameters: {model: b.gguf}")

    assert (config.file, config.reranking) == ("m/b.gguf", True)


def test_files_of_other_formats_are_a_model_if_the_gallery_names_its_backend(tmp_path: Path) -> None:
    overlay = """
    backend: whisper
    parameters: {model: sub/model.bin}
    options: ["config:tokens.txt"]
    known_usecases: [transcript]
    """

    config = arrived(tmp_path, {"sub/model.bin": b"\1\2", "tokens.txt": b"a"}, overlay=overlay)

    assert (config.backend, config.file, config.name) == ("whisper", "m/sub/model.bin", "m")
    assert config.known_usecases == ("transcript",)


def test_a_folder_may_be_the_model_that_a_gallery_names(tmp_path: Path) -> None:
    overlay = "backend: faster-whisper\nparameters: {model: base}"

    config = arrived(tmp_path, {"base/model.bin": b"x", "base/config.json": b"{}"}, overlay=overlay)

    assert (config.backend, config.file) == ("faster-whisper", "m/base")


def test_configuration_alone_is_refused_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"phi\.yaml: a configuration, and not the model itself"):
        arrived(tmp_path, {"phi.yaml": b"name: phi"})


@pytest.mark.parametrize("overlay", ["", "backend: whisper", "parameters: {model: other.bin}\nbackend: x"])
def test_what_nothing_is_known_of_is_no_model(tmp_path: Path, overlay: str) -> None:
    with pytest.raises(Invalid, match="no model in it"):
        arrived(tmp_path, {"model.bin": b"x"}, overlay=overlay)


CHAT = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}).encode()


@pytest.mark.parametrize(
    ("config", "more", "usecases"),
    [
        (CHAT, {"chat_template.jinja": b"x"}, ("chat", "completion")),
        (CHAT, {}, ("completion",)),
        (b'{"architectures":["BertModel"]}', {}, ("embeddings",)),
        (CHAT, {"modules.json": b"[]"}, ("embeddings",)),
        (b'{"architectures":["BertForSequenceClassification"]}', {}, ("rerank",)),
        (
            b'{"architectures":["X"],"vision_config":{}}',
            {"chat_template.json": b"{}"},
            ("chat", "completion", "vision"),
        ),
    ],
)
def test_what_a_folder_is_for_is_read_from_its_config(
    tmp_path: Path, config: bytes, more: dict[str, bytes], usecases: tuple[str, ...]
) -> None:
    made = arrived(tmp_path, {"config.json": config, "model.safetensors": _weights(), **more})

    assert (made.file, made.backend, made.known_usecases) == ("m", "vllm", usecases)
    assert (made.embeddings, made.reranking) == (usecases == ("embeddings",), usecases == ("rerank",))


def test_a_folder_without_all_of_its_weights_is_refused(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    files = {"config.json": CHAT, "model.safetensors.index.json": index, "model-1.safetensors": _weights()}

    with pytest.raises(Invalid, match=r"model-2\.safetensors: this part of the model is missing"):
        arrived(tmp_path, files)


def test_a_folder_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cut off"):
        arrived(tmp_path, {"config.json": CHAT, "model.safetensors": _weights()[:-1]})


@pytest.mark.parametrize(
    ("names", "backends"),
    [
        (["m/config.json", "m/a.safetensors"], ("vllm", "sglang", "transformers", "mlx")),
        (["m/model_index.json", "m/unet/a.safetensors"], ("diffusers",)),
        (["m/a.gguf"], ()),
        (["m/config.json", "m/model.bin"], ()),
    ],
)
def test_which_backends_could_serve_a_folder(names: list[str], backends: tuple[str, ...]) -> None:
    assert folder_backends(names) == backends


def test_a_models_own_template_wins_over_that_of_its_hub(tmp_path: Path) -> None:
    hints = ModelHints("{{ .Prompt }}", "Be brief.", {"stop": ["x"], "num_ctx": 512, "temperature": 0.5})
    own = arrived(tmp_path, {"a.gguf": TINY}, hints=hints)

    assert own.system_prompt == "Be brief."
    assert (own.stopwords, own.context_size, own.parameters.temperature) == (("x",), 512, 0.5)
    assert bool(own.template.chat) != own.template.use_tokenizer_template


BARE = gguf({"general.architecture": "llama", "llama.context_length": 512}).getvalue()


@pytest.mark.parametrize(
    ("template", "usecases"),
    [
        ("{{ .System }} {{ .Prompt }} {{ .Response }}", ("chat", "completion")),
        ("{{ title .Prompt }}", ("completion",)),
    ],
)
def test_a_hubs_template_is_for_models_that_have_none_and_has_to_be_understood(
    tmp_path: Path, template: str, usecases: tuple[str, ...]
) -> None:
    hints = ModelHints(template)
    config = arrived(tmp_path, {"a.gguf": BARE}, hints=hints)

    assert config.known_usecases == usecases
    assert (config.template.chat == template) is ("chat" in usecases)
    assert bool(template_fault(hints)) is ("chat" not in usecases)
