"""A model's GGUF files on this machine. Blocks while it reads: not for an event loop."""

from dataclasses import dataclass
from pathlib import Path

from remuda.core.errors import Invalid
from remuda.models.gguf import GgufHeader, parts_of, read_header


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model that is there with all its parts. `first` is the file that leads to the others."""

    first: Path
    header: GgufHeader
    parts: tuple[Path, ...]
    size_bytes: int  # Of all parts.


def open_gguf(path: Path) -> GgufModel:
    """What is in a GGUF file, given any part of it. Invalid, naming the file, for one that cannot be used."""
    parts = tuple(path.with_name(name) for name in parts_of(path.name))
    try:
        size = sum(part.stat().st_size for part in parts)
        with parts[0].open("rb") as file:
            header = read_header(file)
    except OSError as error:
        raise Invalid(f"{error.filename}: {error.strerror}", hint=_completing(parts)) from None
    except Invalid as error:
        raise Invalid(f"{parts[0]}: {error.message}") from None
    return GgufModel(parts[0], header, parts, size)


def _completing(parts: tuple[Path, ...]) -> str:
    return f"the model has {len(parts)} parts, all in one folder" if len(parts) > 1 else ""
