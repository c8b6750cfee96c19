"""Which known key of a model file an unknown one was probably meant to be. Pure."""

from typing import Final

from remuda.core.close_matches import likeness
from remuda.models.config import ModelConfig, Parameters, Section

_LIKENESS_MIN: Final = 0.65  # Higher than for names that were typed: most unknown keys are a peer's.


def misspelled(unknown: tuple[str, ...]) -> list[str]:
    """A warning for each unknown key that is close to a known one, or known elsewhere in the file."""
    return [
        f"{key} is not a known key and has no effect; did you mean `{meant}`?"
        for key in unknown
        if (meant := _meant(key))
    ]


def _meant(key: str) -> str:
    prefix, _, last = key.rpartition(".")
    section = _section(prefix)
    if section is None:
        return ""
    if section is ModelConfig and last in Parameters.model_fields:
        return f"parameters.{last}"
    if section is Parameters and last in _keys(ModelConfig):
        return last
    near = [name for name in _keys(section) if _alike(last, name)]
    best = max(near, key=lambda name: likeness(last, name), default="")
    return f"{prefix}.{best}" if best and prefix else best


def _alike(written: str, known: str) -> bool:
    """A pair of letters in the wrong order changes most pairs of a short word."""
    swapped = written[:1] == known[:1] and sorted(written) == sorted(known)
    return swapped or likeness(written, known) >= _LIKENESS_MIN


def _keys(section: type[Section]) -> list[str]:
    return [name for name, field in section.model_fields.items() if not field.exclude]


def _section(prefix: str) -> type[Section] | None:
    found: type[Section] | None = ModelConfig
    for name in prefix.split(".") if prefix else ():
        field = found.model_fields.get(name) if found is not None else None
        kind = field.annotation if field is not None else None
        found = kind if isinstance(kind, type) and issubclass(kind, Section) else None
    return found
