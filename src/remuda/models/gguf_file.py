"""A model's GGUF files on this machine, and a configuration made from such a file alone. Reading blocks:
not for an event loop.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.hints import likeness
from remuda.models.config import GGUF_BACKEND, NAME_CHARS_MAX, ModelConfig, Parameters, Template
from remuda.models.gguf import (
    CutOff,
    GgufHeader,
    Tensors,
    bytes_needed,
    parts_of,
    read_header,
    read_tensors,
)
from remuda.models.memory import effective_context

_PROJECTORS_MAX: Final = 20  # Looked at beside one model.
_AGAIN: Final = "copy or download it again"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model that is there with all its parts. `first` is the file that leads to the others."""

    first: Path
    header: GgufHeader
    parts: tuple[Path, ...]
    size_bytes: int  # Of all parts.
    parameters: int = 0  # Numbers in all of its tensors.


def open_gguf(path: Path) -> GgufModel:
    """What is in a GGUF file, given any part of it. Invalid, naming the file, for one that cannot be used."""
    parts = tuple(path.with_name(name) for name in parts_of(path.name))
    try:
        size = sum(part.stat().st_size for part in parts)
        with parts[0].open("rb") as file:
            header = read_header(file)
        parameters = sum(_checked_tensors(part).parameters for part in parts)
    except OSError as error:
        raise Invalid(f"{error.filename}: {error.strerror}", hint=_completing(parts)) from None
    except CutOff as error:
        raise CutOff(_naming(parts, error), hint=_AGAIN) from None
    except Invalid as error:
        raise Invalid(_naming(parts, error), hint=error.hint) from None
    return GgufModel(parts[0], header, parts, size, parameters)


@dataclass(frozen=True, slots=True)
class Projector:
    """A file that may be one's eyes or ears."""

    path: str
    header: GgufHeader


def find_projector(model: GgufModel) -> Path | None:
    """The projector that lies beside a model and fits it, by its header: None where there is none, and for a
    model that sees nothing."""
    chosen = choose_projector(model.first.name, model.header, _projectors(model))
    return model.first.with_name(chosen.path) if chosen is not None else None


def projector_left_out(model: GgufModel) -> str:
    """Why what lies beside a model is not added with it; empty: it is, or there is nothing."""
    return unfit_projector(model.first.name, model.header, _projectors(model))


def choose_projector(name: str, model: GgufHeader, found: Sequence[Projector]) -> Projector | None:
    """One rule for all ways in which models come. Of several that fit, the one whose name is most like the
    model's."""
    fitting = [one for one in found if _fits(one.header, model)]
    return min(fitting, key=lambda one: _unlikeness(one, name), default=None)


def unfit_projector(name: str, model: GgufHeader, found: Sequence[Projector]) -> str:
    """Why none of them is used; empty: one is, or there is none."""
    if not found or choose_projector(name, model, found) is not None:
        return ""
    nearest = min(found, key=lambda one: _unlikeness(one, name))
    file = PurePosixPath(nearest.path).name
    return (
        f"{file} is not used: it is a projector for models of embedding length "
        f"{nearest.header.projection_length}, and {name} has {model.embedding_length}"
    )


def _fits(projector: GgufHeader, model: GgufHeader) -> bool:
    """Older projectors do not say how wide a model they are for."""
    return projector.projection_length in (0, model.embedding_length)


def _unlikeness(one: Projector, name: str) -> tuple[float, str]:
    file = PurePosixPath(one.path).name
    return -likeness(file.lower(), name.lower()), one.path


def _projectors(model: GgufModel) -> list[Projector]:
    found = []
    for path in _beside(model):
        try:
            with path.open("rb") as file:
                header = read_header(file)
        except (OSError, Invalid):
            continue
        if header.is_projector:
            found.append(Projector(path.name, header))
    return found


def _beside(model: GgufModel) -> list[Path]:
    """Files that may be projectors, which their publishers name so."""
    try:
        names = sorted(path for path in model.first.parent.iterdir() if path.suffix.lower() == ".gguf")
    except OSError:
        return []
    return [path for path in names if "mmproj" in path.name.lower()][:_PROJECTORS_MAX]


def missing_bytes(path: Path) -> int:
    """How many bytes the file lacks at least; 0: none, or it is no GGUF file that can be understood. Raises
    OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            needed = bytes_needed(file)
        except CutOff:  # Within the header: how much is to come is not known.
            return 1
        except Invalid:
            return 0
    return max(0, needed - size)


def _checked_tensors(part: Path) -> Tensors:
    size = part.stat().st_size
    try:
        with part.open("rb") as file:
            tensors = read_tensors(file)
    except CutOff as error:
        raise CutOff(f"{part}: {error.message}") from None
    except Invalid as error:
        raise Invalid(f"{part}: {error.message}") from None
    needed = tensors.bytes_needed
    if size < needed:
        raise CutOff(f"{part}: the file is cut off: it has {size} bytes and its tensors need {needed}")
    return tensors


def _naming(parts: tuple[Path, ...], error: Invalid) -> str:
    """Its words with the file's name, unless they have one."""
    named = error.message.startswith(tuple(f"{part}: " for part in parts))
    return error.message if named else f"{parts[0]}: {error.message}"


def _completing(parts: tuple[Path, ...]) -> str:
    return f"the model has {len(parts)} parts, all in one folder" if len(parts) > 1 else ""


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


def describe_gguf(path_name: str, header: GgufHeader, file: str, projector: str = "") -> ModelConfig:
    """How to serve a model of which there is nothing but a GGUF file called `path_name`, and perhaps a
    projector, which makes it see. Backends find them at `file` and `projector`. Invalid for a file that
    belongs to a model and is none."""
    companion = _COMPANIONS.get(header.kind) or _COMPANIONS.get(header.architecture)
    if companion:
        raise Invalid(f"{path_name} is {companion}")
    config = ModelConfig(
        name=name_from(path_name) or name_from(header.name) or header.architecture,
        backend=GGUF_BACKEND,
        parameters=Parameters(model=file),
        context_size=effective_context(ModelConfig(), header),
    )
    purpose = _purpose(header)
    usecases = purpose["known_usecases"]
    if projector and isinstance(usecases, tuple) and "chat" in usecases:
        purpose |= {"mmproj": projector, "known_usecases": (*usecases, "vision")}
    return config.model_copy(update=purpose)


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
