"""Bounds on the size and shape of JSON schemas that an engine makes a grammar of by itself, and references
without end in them. Pure.

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
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_SHOWN_CHARS_MAX: Final = 80  # Of a reference that is named in a refusal.


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


def check_references(schema: object) -> Sliced[None]:
    """Invalid names a reference within what it refers to: what is made of it never ends. Those that lead
    nowhere are left to the engine."""
    budget = Budget("the JSON schema", NODES_MAX)
    followed, done = set[str](), set[str]()
    path = [("", iter((yield from _references(schema, budget))))]
    while path:
        at, left = path[-1]
        reference = next(left, None)
        if reference is None:
            path.pop()
            followed.discard(at)
            done.add(at)
        elif reference in followed:
            raise Invalid(
                f"{reference[:_SHOWN_CHARS_MAX]} refers to itself",
                hint="write out the levels that are needed: an answer to it could go on for ever",
            )
        elif reference not in done:
            followed.add(reference)
            target = _target(schema, reference)
            path.append((reference, iter((yield from _references(target, budget)))))


def _references(value: object, budget: Budget) -> Sliced[list[str]]:
    """Those in it, but for definitions, which count where they are referred to."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, Mapping | list):
            continue
        if budget.spend(1 + len(value)):
            yield
        if isinstance(value, list):
            waiting += value
            continue
        if isinstance(reference := value.get("$ref"), str):
            found.append(reference)
        waiting += (inner for key, inner in value.items() if key not in _DEFINITIONS)
    return found


def _target(schema: object, reference: str) -> object:
    """None for one that leads nowhere, or out of this schema."""
    first, *steps = reference.split("/")
    found = schema if first == "#" else None
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
