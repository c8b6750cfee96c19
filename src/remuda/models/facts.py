"""What a model's files say of themselves, whatever their format: for people, and for the memory it takes.
Reading blocks: not for an event loop.
"""

from dataclasses import dataclass
from pathlib import Path

from remuda.models.gguf import GgufHeader
from remuda.models.gguf_file import find_projector, open_gguf
from remuda.models.model_folder import open_folder


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers are 0 and texts empty where the files say nothing."""

    format: str  # `gguf` or `safetensors`.
    layout: GgufHeader  # Architecture, context, layers and so on; of a folder in the same terms.
    size_bytes: int
    parameters: int
    precision: str  # The quantisation of a GGUF file, or the type of most numbers.
    files: tuple[str, ...]  # Names, all in one folder.
    projector: str = ""  # The name of one that lies beside it and fits it.


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
