"""Models that are folders of safetensors files."""

import json
import struct
from pathlib import Path

import pytest

from remuda.core.errors import Invalid
from remuda.models.config import ModelConfig
from remuda.models.facts import folder_facts
from remuda.models.gguf import CutOff
from remuda.models.memory import memory_need
from remuda.models.model_folder import FolderModel, folder_stamp, is_model_folder, open_folder

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
BYTES = {"BF16": 2, "F32": 4, "I32": 4}


def safetensors(path: Path, *tensors: tuple[str, list[int]], short: int = 0) -> None:
    listed: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for number, (kind, shape) in enumerate(tensors):
        size = BYTES[kind]
        for width in shape:
            size *= width
        listed[f"t{number}"] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    head = json.dumps(listed).encode()
    path.write_bytes((struct.pack("<Q", len(head)) + head + bytes(end))[: -short or None])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    safetensors(tmp_path / "model.safetensors", ("BF16", [100, 64]), ("BF16", [64, 64]), ("F32", [64]))
    return tmp_path


def sharded(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        safetensors(folder / name, ("BF16", [10, 10]))
    index = {"metadata": {"total_size": 400}, "weight_map": {f"w{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / names[1]


def test_a_folder_says_what_it_is(folder: Path) -> None:
    found = open_folder(folder)

    assert is_model_folder(folder)
    assert (found.layout.architecture, found.layout.name) == ("llama", "LlamaForCausalLM")
    assert (found.layout.context_length, found.layout.block_count, found.layout.vocab_size) == (2048, 4, 100)
    assert (found.parameters, found.dtype) == (100 * 64 + 64 * 64 + 64, "bfloat16")
    assert found.size_bytes == (folder / "model.safetensors").stat().st_size


def test_its_memory_is_computed_as_that_of_other_models(folder: Path) -> None:
    found = open_folder(folder)

    need = memory_need(found.layout, found.size_bytes, ModelConfig(), 256, 1)
    assert need.kv_cache_bytes == 256 * 4 * 2 * (8 + 8) * 2  # Tokens, layers, heads, key and value, f16.


def test_shards_are_added_up(folder: Path) -> None:
    sharded(folder)

    assert (open_folder(folder).parameters, len(open_folder(folder).shards)) == (200, 2)
    assert folder_facts(folder).files == open_folder(folder).shards


def test_a_shard_that_is_missing_or_cut_off_is_named(folder: Path) -> None:
    last = sharded(folder)
    safetensors(last, ("BF16", [10, 10]), short=1)
    with pytest.raises(CutOff, match=rf"{last.name}: the file is cut off: it has \d+ bytes and its tensors"):
        open_folder(folder)
    last.unlink()
    with pytest.raises(CutOff, match=f"{last.name}: this part of the model is missing"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.safetensors": b""}, "model.safetensors: the file is empty"),
        ({"model.safetensors": b"<html><body>Not found"}, "not a safetensors file"),
        ({"model.safetensors": struct.pack("<Q", 9) + b"not JSON!"}, "its header is damaged"),
        ({"model.safetensors": struct.pack("<Q", 99) + b"{"}, "it ends within its header"),
        ({"config.json": b"[1]"}, "config.json: not a JSON object"),
        ({"config.json": b" " * (1 << 20) + b"{}"}, "config.json: larger than 1 MiB"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../x"}}'}, "is not a file beside it"),
        ({"model.safetensors.index.json": b"{}"}, "it names 0 files"),
    ],
)
def test_what_cannot_be_used_is_refused_by_the_files_name(
    folder: Path, change: dict[str, bytes], said: str
) -> None:
    for name, content in change.items():
        (folder / name).write_bytes(content)

    with pytest.raises(Invalid, match=said):
        open_folder(folder)


def with_config(folder: Path, **more: object) -> FolderModel:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **more}))
    return open_folder(folder)


def test_what_configs_say_in_other_words_is_understood(folder: Path) -> None:
    packed = with_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    seeing = with_config(folder, text_config={"hidden_size": 128, "head_dim": 32}, vision_config={})
    odd = with_config(folder, hidden_size="wide", num_attention_heads=-1, num_key_value_heads=True)

    assert packed.dtype == "gptq 4-bit"
    assert (seeing.layout.embedding_length, seeing.layout.key_length, seeing.layout.sees) == (128, 32, True)
    assert (odd.layout.embedding_length, odd.layout.head_count, odd.layout.kv_heads) == (0, 0, 0)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_is_found(folder: Path, name: str) -> None:
    assert not open_folder(folder).layout.has_chat_template
    (folder / name).write_text('{"chat_template": "{{ messages }}"}')
    assert open_folder(folder).layout.has_chat_template


def test_a_folder_without_weights_is_no_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(Invalid, match="has no safetensors files"):
        open_folder(folder)


def test_a_folder_that_changes_has_another_stamp(folder: Path) -> None:
    before = folder_stamp(folder)
    (folder / "more.json").write_text("{}")
    assert folder_stamp(folder) != before
    assert folder_stamp(folder / "nowhere") == 0
