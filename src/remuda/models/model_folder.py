"""Models that are folders: weights in safetensors files, and a config.json that says what they are. Reading
blocks, within bounds: not for an event loop.
"""

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from remuda.core.errors import Invalid
from remuda.core.os_errors import os_reason
from remuda.models.config import Template
from remuda.models.files import path_fault
from remuda.models.gguf import CutOff, GgufHeader

CONFIG_BYTES_MAX: Final = 1 << 20
INDEX_BYTES_MAX: Final = 32 << 20
HEADER_BYTES_MAX: Final = 32 << 20  # Of one safetensors file; the format's own bound is 100 MB.
SHARDS_MAX: Final = 1000
TEXT_BACKENDS: Final = ("vllm", "sglang", "transformers", "mlx")  # Which serve such folders, best first.
IMAGE_BACKENDS: Final = ("diffusers",)
_CONFIG: Final = "config.json"
_PIPELINE: Final = "model_index.json"  # Of a model that makes images, whose parts have a folder each.
FOLDER_CONFIGS: Final = (_CONFIG, _PIPELINE)  # By one of which a folder is known to be a model.
_SENTENCES: Final = "modules.json"  # Of a model made for sentence-transformers.
_INDEX: Final = "model.safetensors.index.json"
_LENGTH: Final = struct.Struct("<Q")
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")
_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_JSON: Final = TypeAdapter[dict[str, JsonValue]](dict[str, JsonValue])
_COUNT_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A model that is there with all its parts."""

    layout: GgufHeader  # In the same terms as that of a GGUF file: memory is computed from it.
    size_bytes: int  # Of its weights.
    parameters: int
    dtype: str
    shards: tuple[str, ...]  # The files that its weights are in.


def is_model_folder(path: Path) -> bool:
    return (path / _CONFIG).is_file()


def folder_stamp(path: Path) -> int:
    """Changes when a file of the folder comes, goes or is written to."""
    try:
        with os.scandir(path) as found:
            files = sorted((one.name, one.stat().st_mtime_ns, one.stat().st_size) for one in found)
    except OSError:
        return 0
    return hash(tuple(files))


def open_folder(path: Path) -> FolderModel:
    """What is in a model's folder. Invalid, naming the file, for one that cannot be used; CutOff when a part
    is missing or not whole."""
    try:
        config = _read(path / _CONFIG, CONFIG_BYTES_MAX)
        shards = _shards(path)
        tensors = [_tensors(path / shard) for shard in shards]
        size = sum((path / shard).stat().st_size for shard in shards)
        template = _has_template(path)
    except OSError as error:
        raise Invalid(f"{error.filename or path}: {os_reason(error)}") from None
    kinds: dict[str, int] = {}
    for found in tensors:
        for kind, count in found.items():
            kinds[kind] = kinds.get(kind, 0) + count
    layout = _layout(config, template=template)
    return FolderModel(layout, size, sum(kinds.values()), _dtype(config, kinds), shards)


def is_pipeline(path: Path) -> bool:
    """Whether it is a model that makes images, as diffusers has them."""
    return (path / _PIPELINE).is_file()


def folder_backends(names: Collection[str]) -> tuple[str, ...]:
    """What could serve a model of these files; empty: it is no folder of safetensors."""
    if not any(name.endswith(".safetensors") for name in names):
        return ()
    files = {name.rpartition("/")[2] for name in names}
    if _PIPELINE in files:
        return IMAGE_BACKENDS
    return TEXT_BACKENDS if _CONFIG in files else ()


def folder_purpose(path: Path) -> dict[str, object]:
    """What the model can be asked for, as keys of a configuration. Invalid for one that cannot be used."""
    if is_pipeline(path):
        return {"known_usecases": ("image",)}
    layout = open_folder(path).layout
    if layout.name.endswith("ForSequenceClassification"):
        return {"reranking": True, "known_usecases": ("rerank",)}
    if (path / _SENTENCES).is_file() or (layout.name.endswith("Model") and not layout.has_chat_template):
        return {"embeddings": True, "known_usecases": ("embeddings",)}
    senses = (("vision",) if layout.sees else ()) + (("audio",) if layout.hears else ())
    if not layout.has_chat_template:
        return {"known_usecases": ("completion", *senses)}
    return {
        "known_usecases": ("chat", "completion", *senses),
        "template": Template(use_tokenizer_template=True),
    }


def _shards(path: Path) -> tuple[str, ...]:
    """Those of the index, or all there are."""
    if not (path / _INDEX).is_file():
        found = tuple(sorted(file.name for file in path.glob("*.safetensors")))[:SHARDS_MAX]
        if not found:
            raise Invalid(f"{path}: the folder has no safetensors files")
        return found
    named = _read(path / _INDEX, INDEX_BYTES_MAX).get("weight_map")
    files = sorted({str(file) for file in named.values()}) if isinstance(named, dict) else []
    if not files or len(files) > SHARDS_MAX:
        raise Invalid(f"{path / _INDEX}: it names {len(files)} files, and 1 to {SHARDS_MAX} are accepted")
    for file in files:
        if path_fault(file) or "/" in file:
            raise Invalid(f"{path / _INDEX}: {file[:80]!r} is not a file beside it")
        if not (path / file).is_file():
            raise CutOff(f"{path / file}: this part of the model is missing", hint="download it again")
    return tuple(files)


class _Tensor(BaseModel):
    model_config = ConfigDict(extra="ignore")

    dtype: str
    shape: list[int] = Field(max_length=32)
    data_offsets: tuple[int, int]


def _tensors(file: Path) -> Mapping[str, int]:
    """How many numbers of each type it has. CutOff when it is shorter than its header says."""
    size = file.stat().st_size
    with file.open("rb") as source:
        head = source.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise CutOff(f"{file}: the file is {'cut off' if head else 'empty'}", hint="download it again")
        (length,) = _LENGTH.unpack(head)
        if length > HEADER_BYTES_MAX:
            raise Invalid(f"{file}: not a safetensors file (wrong header)")
        text = source.read(length)
    if len(text) < length:
        raise CutOff(f"{file}: the file is cut off: it ends within its header", hint="download it again")
    kinds: dict[str, int] = {}
    end = 0
    for tensor in _listed(file, text):
        numbers = 1
        for width in tensor.shape:
            numbers *= width
        kinds[tensor.dtype] = kinds.get(tensor.dtype, 0) + numbers
        end = max(end, tensor.data_offsets[1])
    needed = _LENGTH.size + length + end
    if size < needed:
        words = f"the file is cut off: it has {size} bytes and its tensors need {needed}"
        raise CutOff(f"{file}: {words}", hint="download it again")
    return kinds


def _listed(file: Path, text: bytes) -> list[_Tensor]:
    try:
        found = _JSON.validate_json(text)
        return [_Tensor.model_validate(value) for key, value in found.items() if key != "__metadata__"]
    except ValidationError:
        raise Invalid(f"{file}: not a safetensors file (its header is damaged)") from None


def _read(file: Path, bytes_max: int) -> dict[str, JsonValue]:
    with file.open("rb") as source:
        text = source.read(bytes_max + 1)
    if len(text) > bytes_max:
        raise Invalid(f"{file}: larger than {bytes_max >> 20} MiB")
    try:
        return _JSON.validate_json(text)
    except ValidationError:
        raise Invalid(f"{file}: not a JSON object") from None


def _layout(config: Mapping[str, JsonValue], *, template: bool) -> GgufHeader:
    """Models that see keep what they read text with below `text_config`."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    width, heads = (
        _number(text, "hidden_size", "d_model", "n_embd"),
        _number(text, "num_attention_heads", "n_head"),
    )
    head_width = _number(text, "head_dim") or (width // heads if heads else 0)
    return GgufHeader(
        architecture=str(config.get("model_type") or name or "unknown"),
        name=name,
        context_length=_number(text, "max_position_embeddings", "n_positions", "max_sequence_length"),
        block_count=_number(text, "num_hidden_layers", "n_layer", "num_layers"),
        embedding_length=width,
        head_count=heads,
        head_counts_kv=(_number(text, "num_key_value_heads") or heads,),
        key_length=head_width,
        value_length=head_width,
        vocab_size=_number(text, "vocab_size"),
        expert_count=_number(text, "num_local_experts", "num_experts", "n_routed_experts"),
        has_chat_template=template,
        sees="vision_config" in config,
        hears="audio_config" in config,
    )


def _number(config: Mapping[str, JsonValue], *names: str) -> int:
    """The first of these that is a sound count; 0: none is."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _COUNT_MAX:
            return value
    return 0


def _dtype(config: Mapping[str, JsonValue], kinds: Mapping[str, int]) -> str:
    """What most of its numbers are; where they are packed, what it says of itself."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict) and isinstance(method := quantised.get("quant_method"), str):
        bits = quantised.get("bits")
        return f"{method} {bits}-bit" if isinstance(bits, int) else method
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    declared = config.get("torch_dtype") or config.get("dtype")
    return _DTYPES.get(most, most.lower()) or (declared if isinstance(declared, str) else "")


def _has_template(path: Path) -> bool:
    if any((path / name).is_file() for name in _TEMPLATES):
        return True
    file = path / "tokenizer_config.json"
    try:
        return file.is_file() and bool(_read(file, INDEX_BYTES_MAX).get("chat_template"))
    except Invalid:
        return False
