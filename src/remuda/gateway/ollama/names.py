"""Names of models as Ollama's clients write them: with a tag, which is `latest` where none is given. Pure."""

from collections.abc import Collection, Sequence
from typing import Final

_LATEST: Final = ":latest"


def other_names(name: str) -> Sequence[str]:
    """What the same model may be called here."""
    if name.endswith(_LATEST):
        return (name.removesuffix(_LATEST),)
    return () if _has_tag(name) else (f"{name}{_LATEST}",)


def shown_name(name: str, names: Collection[str]) -> str:
    """With its tag, unless that is the name of another of the `names`."""
    tagged = name if _has_tag(name) else f"{name}{_LATEST}"
    return name if tagged in names else tagged


def _has_tag(name: str) -> bool:
    return ":" in name.rpartition("/")[2]
