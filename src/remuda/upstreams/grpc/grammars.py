"""Grammars made for requests, kept for the next request with the same schema or tools."""

from collections.abc import Sequence
from typing import Final

import msgspec
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.slices import Sliced
from remuda.models.grammar import ToolSpec, grammar_of_schema, grammar_of_tools

KEPT_BYTES_MAX: Final = 16 << 20
_ONE_BYTES_MAX: Final = 1 << 20

GrammarKey = tuple[str | bytes | bool | None, ...]


class Grammars:
    """Those used last stay."""

    def __init__(self) -> None:
        self._kept: dict[GrammarKey, str] = {}
        self._bytes = 0

    def of_schema(self, raw: bytes, *, strict: bool = False) -> Sliced[str]:
        """Invalid says where the schema cannot be followed."""
        key: GrammarKey = (raw, strict)
        if (known := self._known(key)) is not None:
            return known
        grammar = yield from grammar_of_schema(_decoded(raw), strict=strict)
        self._keep(key, grammar)
        return grammar

    def of_tools(
        self, tools: Sequence[tuple[str, bytes, bool]], *, parallel: bool, no_action: str | None
    ) -> Sliced[str]:
        """For calls of tools: of each the name, the schema of its parameters, and whether it is strict."""
        key: GrammarKey = (parallel, no_action, *(part for tool in tools for part in tool))
        if (known := self._known(key)) is not None:
            return known
        specs = [ToolSpec(name, parameters=_decoded(raw), strict=strict) for name, raw, strict in tools]
        grammar = yield from grammar_of_tools(specs, parallel=parallel, no_action=no_action)
        self._keep(key, grammar)
        return grammar

    def _known(self, key: GrammarKey) -> str | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found  # The last one is forgotten last.
        return found

    def _keep(self, key: GrammarKey, grammar: str) -> None:
        size = _size(key, grammar)
        if size > _ONE_BYTES_MAX or key in self._kept:
            return
        self._kept[key] = grammar
        self._bytes += size
        while self._bytes > KEPT_BYTES_MAX:
            oldest = next(iter(self._kept))
            self._bytes -= _size(oldest, self._kept.pop(oldest))


def _decoded(raw: bytes) -> JsonValue:
    """A schema as it came with the request."""
    try:
        value: JsonValue = msgspec.json.decode(raw)
    except RecursionError:
        raise Invalid("a JSON schema is nested too deeply") from None
    return value


def _size(key: GrammarKey, grammar: str) -> int:
    return len(grammar) + sum(len(part) for part in key if isinstance(part, str | bytes))
