"""A map of an index as a YAML document of its own, for programs that know what it means. Pure.

What stands for something else is written out, within bounds; numbers stay numbers and quoted text stays text.
"""

import re
from collections.abc import Iterator
from typing import Final

import yaml
from yaml import events

from remuda.core.yaml_tree import List, Malformed, Map, Merger, Node, Text

_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")
DEPTH_MAX: Final = 16
CHARS_MAX: Final = 20_000  # Of the document's words, each counted with one for its place.


def document_of(node: Map, merger: Merger, name: str) -> str:
    """Malformed, saying that it is about `name`, when it is too large or has tags."""
    return _Writer(merger, name, node.line).document(node)


class _Writer:
    def __init__(self, merger: Merger, name: str, line: int) -> None:
        self._merger = merger
        self._name = name
        self._line = line
        self._left = CHARS_MAX

    def document(self, root: Map) -> str:
        stream = (
            events.StreamStartEvent(),
            events.DocumentStartEvent(),
            *self._node(root, 0),
            events.DocumentEndEvent(),
            events.StreamEndEvent(),
        )
        text = yaml.emit(stream, Dumper=yaml.SafeDumper, allow_unicode=True, width=CHARS_MAX)
        assert isinstance(text, str), "without a stream to write to it is returned"
        return text

    def _node(self, node: Node, depth: int) -> Iterator[events.Event]:
        if depth > DEPTH_MAX:
            raise Malformed(self._line, f"{self._name} is nested more than {DEPTH_MAX} deep")
        if node.tag:
            raise Malformed(node.line, f"{self._name} has the tag {node.tag}, which is not allowed")
        self._spend(1)
        match node:
            case Text(value, plain=plain):
                yield self._scalar(value, plain=plain)
            case List(items=items):
                yield events.SequenceStartEvent(None, None, implicit=True, flow_style=not items)
                for item in items:
                    yield from self._node(item, depth + 1)
                yield events.SequenceEndEvent()
            case Map():
                pairs = self._merger.flatten(node)
                yield events.MappingStartEvent(None, None, implicit=True, flow_style=not pairs)
                for key, child in pairs.items():
                    yield self._scalar(key, plain=_is_word(key))
                    yield from self._node(child, depth + 1)
                yield events.MappingEndEvent()

    def _scalar(self, value: str, *, plain: bool) -> events.ScalarEvent:
        self._spend(len(value))
        return events.ScalarEvent(
            None, None, implicit=(plain, True), value=value, style=None if plain else '"'
        )

    def _spend(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise Malformed(self._line, f"{self._name} has more than {CHARS_MAX} characters")


def _is_word(key: str) -> bool:
    """It needs no quotes to be read as text: keys are words, also `on` and `1`."""
    return bool(_WORD.fullmatch(key)) and yaml.safe_load(key) == key
