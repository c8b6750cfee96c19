"""What a model's files say of themselves, read from them. Reading blocks: not for an event loop."""

from pathlib import Path

from remuda.models.gguf import ModelFacts
from remuda.models.gguf_file import find_projector, open_gguf
from remuda.models.model_folder import open_folder


def gguf_facts(path: Path) -> ModelFacts:
    """Raises as `open_gguf` does."""
    found = open_gguf(path)
    projector = None if found.header.is_projector else find_projector(found)
    return ModelFacts(
        "gguf",
        found.header,
        found.size_bytes,
        found.parameters,
        found.header.quantisation,
        tuple(part.name for part in found.parts),
        "" if projector is None else projector.name,
    )


def folder_facts(path: Path) -> ModelFacts:
    """Raises as `open_folder` does."""
    found = open_folder(path)
    return ModelFacts(
        "safetensors", found.layout, found.size_bytes, found.parameters, found.dtype, found.shards
    )


def facts_of(path: Path) -> ModelFacts:
    """Of a file or of a folder. Raises as the one of the two above."""
    return folder_facts(path) if path.is_dir() else gguf_facts(path)
