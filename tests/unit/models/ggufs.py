"""GGUF metadata written by hand, sound and otherwise."""

import io
import struct
from collections.abc import Mapping

Value = str | int | float | bool | list[int] | list[str]


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: Value) -> bytes:
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(text(str(part)) for part in item)
    return struct.pack("<IIQ", 9, 5, len(item)) + b"".join(struct.pack("<i", part) for part in item)


def gguf(
    keys: Mapping[str, Value], *, version: int = 3, tensors: int = 0, claimed: int | None = None
) -> io.BytesIO:
    """With as many keys as there are, or as are claimed."""
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys) if claimed is None else claimed)
    return io.BytesIO(head + b"".join(text(key) + value(item) for key, item in keys.items()))


LLAMA: Mapping[str, Value] = {
    "general.architecture": "llama",
    "general.name": "A model",
    "general.type": "model",
    "general.file_type": 15,
    "llama.context_length": 131072,
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ messages }}",
}
