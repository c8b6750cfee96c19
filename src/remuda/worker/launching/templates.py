"""Texts with placeholders in braces, checked when they are read and not when they are used. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid

PORT: Final = "port"
OPTIONS: Final = "options"
KNOWN: Final = (PORT, "model_path", "model_name", "context_size", "parallel", OPTIONS)

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]|[^{}]+")
_PORT_LATER: Final = "{port}"  # How a recipe writes the port, which is known only when the process starts.


@dataclass(frozen=True, slots=True)
class Placeholder:
    name: str


@dataclass(frozen=True, slots=True)
class PlaceholderText:
    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> "PlaceholderText":
        """ValueError, in words for whoever wrote the text, for unknown placeholders and lone braces."""
        return cls(tuple(_part(match) for match in _TOKEN.finditer(text)))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(part.name for part in self.parts if isinstance(part, Placeholder))

    def filled(self, values: Mapping[str, str]) -> str:
        """The text as a recipe wants it: with these values, and the port still open."""
        return "".join(self._piece(part, values) for part in self.parts)

    def _piece(self, part: str | Placeholder, values: Mapping[str, str]) -> str:
        if isinstance(part, Placeholder):
            return _PORT_LATER if part.name == PORT else plain(values[part.name])
        return plain(part)


def plain(text: str) -> str:
    """`text`, if a recipe leaves it as it is and a process can be given it. Invalid otherwise."""
    if _PORT_LATER in text:
        raise Invalid(f"{text[:80]!r} cannot be passed on: {_PORT_LATER} in it would become the port")
    if "\0" in text:
        raise Invalid(f"{text[:80]!r} cannot be passed on: it holds a NUL character")
    return text


def _part(match: re.Match[str]) -> str | Placeholder:
    token = match[0]
    if token in ("{{", "}}"):
        return token[0]
    if token in ("{", "}"):
        raise ValueError(f"a single {token} has no meaning; write {token}{token} for a brace")
    if match[1] is None:
        return token
    if match[1] not in KNOWN:
        known = " ".join(f"{{{name}}}" for name in KNOWN)
        raise ValueError(f"there is no placeholder {token}; use {known}, and {{{{ for a brace")
    return Placeholder(match[1])
