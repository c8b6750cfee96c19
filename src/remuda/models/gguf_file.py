"""A model's GGUF files on this machine. Blocks while it reads: not for an event loop."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid
from remuda.models.gguf import CutOff, GgufHeader, bytes_needed, parts_of, read_header

_AGAIN: Final = "copy or download it again"


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
        for part in parts:
            _check_length(part)
    except OSError as error:
        raise Invalid(f"{error.filename}: {error.strerror}", hint=_completing(parts)) from None
    except CutOff as error:
        raise CutOff(_naming(parts, error), hint=_AGAIN) from None
    except Invalid as error:
        raise Invalid(_naming(parts, error)) from None
    return GgufModel(parts[0], header, parts, size)


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


def _check_length(part: Path) -> None:
    size = part.stat().st_size
    try:
        with part.open("rb") as file:
            needed = bytes_needed(file)
    except CutOff as error:
        raise CutOff(f"{part}: {error.message}") from None
    except Invalid as error:
        raise Invalid(f"{part}: {error.message}") from None
    if size < needed:
        raise CutOff(f"{part}: the file is cut off: it has {size} bytes and its tensors need {needed}")


def _naming(parts: tuple[Path, ...], error: Invalid) -> str:
    """Its words with the file's name, unless they have one."""
    named = error.message.startswith(tuple(f"{part}: " for part in parts))
    return error.message if named else f"{parts[0]}: {error.message}"


def _completing(parts: tuple[Path, ...]) -> str:
    return f"the model has {len(parts)} parts, all in one folder" if len(parts) > 1 else ""
