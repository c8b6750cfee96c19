"""Bounds on the size and shape of JSON schemas that an engine makes a grammar of by itself. Pure.

What a schema means is left to the engine. What would take it too long, or end it, is refused here.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.gbnf import ALTERNATIVES_MAX
from remuda.core.slices import Budget, Sliced

NODES_MAX: Final = 50_000  # Maps, lists and values in them.
NESTING_MAX: Final = 128
PATTERN_CHARS_MAX: Final = 1000  # Of one regular expression, which engines parse by recursion.
_CHOICES: Final = frozenset({"enum", "anyOf", "oneOf", "type"})


class SchemaShape:
    """Counts all schemas of one request together."""

    def __init__(self) -> None:
        self._budget = Budget("the JSON schema", NODES_MAX)
        self._alternatives = 0

    def check(self, schema: object) -> Sliced[None]:
        """Invalid says which bound it is beyond."""
        waiting = [(schema, 0)]
        while waiting:
            value, depth = waiting.pop()
            if not isinstance(value, Mapping | list):
                continue
            if depth > NESTING_MAX:
                raise Invalid(f"a JSON schema is nested more than {NESTING_MAX} deep")
            if self._budget.spend(1 + len(value)):
                yield
            waiting += ((inner, depth + 1) for inner in self._inner(value))

    def _inner(self, value: Mapping[str, object] | list[object]) -> Iterator[object]:
        if isinstance(value, list):
            yield from value
            return
        for key, inner in value.items():
            if key in _CHOICES and isinstance(inner, list):
                self._alternatives += len(inner)
                if self._alternatives > ALTERNATIVES_MAX:
                    raise Invalid(
                        f"the JSON schema has more than {ALTERNATIVES_MAX} alternatives",
                        hint="allow fewer values: engines need too long for more",
                    )
            elif key == "pattern" and isinstance(inner, str) and len(inner) > PATTERN_CHARS_MAX:
                raise Invalid(f"a pattern in the JSON schema is longer than {PATTERN_CHARS_MAX} characters")
            yield inner
