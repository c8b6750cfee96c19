"""Makes a model's configuration from its GGUF file alone. Pure."""

import re
from pathlib import PurePosixPath
from typing import Final

from remuda.core.errors import Invalid
from remuda.models.config import GGUF_BACKEND, ModelConfig, Parameters, Template
from remuda.models.gguf import GgufHeader
from remuda.models.memory import effective_context
from remuda.models.reading import NAME_CHARS_MAX

_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_PRECISION: Final = re.compile(
    r"[-._](ud[-_])?(i?q\d(_[a-z0-9]+)*|tq\d_\d|mxfp4(_moe)?|nvfp4|(bf|fp?)(8|16|32))$", re.IGNORECASE
)
_UNUSUAL: Final = re.compile(r"[^a-z0-9._-]+")
_COMPANIONS: Final = {
    "mmproj": "the eyes or ears of another model: name it as mmproj in that model's file",
    "clip": "the eyes or ears of another model: name it as mmproj in that model's file",
    "adapter": "an adapter of another model: name it as lora_adapter in that model's file",
    "imatrix": "a table for making smaller models, and no model",
}
_EMBEDDERS: Final = re.compile(r".*bert.*|t5encoder|gemma-embedding", re.IGNORECASE)
_POOLING_RANK: Final = 4


def describe_gguf(path_name: str, header: GgufHeader, file: str) -> ModelConfig:
    """How to serve a model of which there is nothing but a GGUF file called `path_name`. Backends find it at
    `file`. Invalid for a file that belongs to a model and is none."""
    companion = _COMPANIONS.get(header.kind) or _COMPANIONS.get(header.architecture)
    if companion:
        raise Invalid(f"{path_name} is {companion}")
    config = ModelConfig(
        name=name_from(path_name) or name_from(header.name) or header.architecture,
        backend=GGUF_BACKEND,
        parameters=Parameters(model=file),
        context_size=effective_context(ModelConfig(), header),
    )
    return config.model_copy(update=_purpose(header))


def name_from(path_name: str) -> str:
    """`models/SmolLM2-135M-Instruct.Q4_1.gguf` becomes smollm2-135m-instruct."""
    stem = PurePosixPath(path_name.replace("\\", "/")).name.removesuffix(".gguf")
    stem = _PRECISION.sub("", _PART.sub("", stem))
    return _UNUSUAL.sub("-", stem.lower()).strip("-._")[:NAME_CHARS_MAX]


def _purpose(header: GgufHeader) -> dict[str, object]:
    """What it can be asked for, and how."""
    if header.pooling_type == _POOLING_RANK or header.label_count:
        return {"reranking": True, "known_usecases": ("rerank",)}
    if header.pooling_type or _EMBEDDERS.fullmatch(header.architecture):
        return {"embeddings": True, "known_usecases": ("embeddings",)}
    if not header.has_chat_template:
        return {"known_usecases": ("completion",)}
    return {
        "known_usecases": ("chat", "completion"),
        "template": Template(use_tokenizer_template=True),
        "options": ("use_jinja:true",),
    }
