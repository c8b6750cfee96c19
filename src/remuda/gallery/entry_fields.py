"""The fields of one entry of an index, each read as its type or refused by name with its line. Pure.

Maps that other programs understand are kept as YAML documents of their own, within bounds.
"""

import re
from collections.abc import Iterator
from typing import Final

import yaml
from yaml import events

from remuda.core.yaml_tree import List, Malformed, Map, Merger, YamlNode, YamlText

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

    def _node(self, node: YamlNode, depth: int) -> Iterator[events.Event]:
        if depth > DEPTH_MAX:
            raise Malformed(self._line, f"{self._name} is nested more than {DEPTH_MAX} deep")
        if node.tag:
            raise Malformed(node.line, f"{self._name} has the tag {node.tag}, which is not allowed")
        self._spend(1)
        match node:
            case YamlText(value, plain=plain):
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


ITEMS_MAX: Final = 256  # Of one list or map inside an entry.
TEXT_CHARS_MAX: Final = 20_000
URI_CHARS_MAX: Final = 2_048

# A name becomes a folder, a word in commands and part of `gallery@name`.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_URI: Final = re.compile(r"[!-~]+")


class EntryFields:
    """The fields of one entry, each read as its type or refused by name."""

    def __init__(self, node: Map, merger: Merger) -> None:
        self._line = node.line
        self._merger = merger
        self._nodes = merger.flatten(node)

    def text(self, name: str) -> str:
        node = self._nodes.get(name)
        return "" if node is None else _plain(node, name)

    def texts(self, name: str) -> tuple[str, ...]:
        node = self._nodes.get(name)
        if node is None or (isinstance(node, YamlText) and node.null):
            return ()
        if not isinstance(node, List):
            raise Malformed(node.line, f"{name} must be a list")
        _check_size(len(node.items), name, node.line)
        return tuple(_plain(item, name) for item in node.items)

    def word(self, name: str, *, required: bool = True) -> str:
        text = self.text(name)
        if text or required:
            _check_word(text, name, self.at(name))
        return text

    def node(self, name: str) -> YamlNode | None:
        """None also for a field without a value."""
        node = self._nodes.get(name)
        return None if isinstance(node, YamlText) and node.null else node

    def maps(self, name: str) -> "tuple[EntryFields, ...]":
        """Of a list of maps."""
        node = self.node(name)
        if node is None:
            return ()
        if not isinstance(node, List):
            raise Malformed(node.line, f"{name} must be a list")
        _check_size(len(node.items), name, node.line)
        return tuple(self._fields(item, name) for item in node.items)

    def _fields(self, item: YamlNode, name: str) -> "EntryFields":
        if not isinstance(item, Map):
            raise Malformed(item.line, f"{name} must be a list of maps")
        return EntryFields(item, self._merger)

    def uri(self, name: str) -> str:
        return self._checked_uri(self.text(name), name)

    def uris(self, name: str) -> tuple[str, ...]:
        return tuple(self._checked_uri(text, name) for text in self.texts(name) if text)

    def sha256(self) -> str:
        text = self.text("sha256")
        if text and not _SHA256.fullmatch(text):
            raise Malformed(self.at("sha256"), "sha256 must be 64 hexadecimal digits")
        return text.lower()

    def capabilities(self) -> tuple[tuple[str, str], ...]:
        node = self._nodes.get("capabilities")
        if node is None or (isinstance(node, YamlText) and node.null):
            return ()
        if not isinstance(node, Map):
            raise Malformed(node.line, "capabilities must map a capability to a backend")
        named = self._merger.flatten(node)
        _check_size(len(named), "capabilities", node.line)
        found = tuple((capability, _plain(value, "capabilities")) for capability, value in named.items())
        for capability, concrete in found:
            _check_word(capability, "a capability", node.line)
            _check_word(concrete, f"the backend for {capability}", node.line)
        return found

    def document(self, name: str) -> str:
        """A map that is not ours to read, as YAML."""
        node = self._nodes.get(name)
        if node is None or (isinstance(node, YamlText) and node.null):
            return ""
        if not isinstance(node, Map):
            raise Malformed(node.line, f"{name} must be a map")
        return document_of(node, self._merger, name)

    def _checked_uri(self, text: str, name: str) -> str:
        if text and (len(text) > URI_CHARS_MAX or not _URI.fullmatch(text)):
            raise Malformed(
                self.at(name), f"{name} must have no spaces and at most {URI_CHARS_MAX} characters"
            )
        return text

    def at(self, name: str) -> int:
        """The line of a field, or else of its map."""
        node = self._nodes.get(name)
        return self._line if node is None else node.line


def _plain(node: YamlNode, name: str) -> str:
    if not isinstance(node, YamlText):
        raise Malformed(node.line, f"{name} must be text")
    if node.tag:
        raise Malformed(node.line, f"{name} has the tag {node.tag}, which is not allowed")
    if len(node.value) > TEXT_CHARS_MAX:
        raise Malformed(node.line, f"{name} has more than {TEXT_CHARS_MAX} characters")
    return "" if node.null else node.value


def _check_size(count: int, name: str, line: int) -> None:
    if count > ITEMS_MAX:
        raise Malformed(line, f"{name} has {count} items, more than the {ITEMS_MAX} allowed")


def _check_word(text: str, name: str, line: int) -> None:
    if not _NAME.fullmatch(text):
        reason = "is missing" if not text else "must be letters, digits and . _ + - only, at most 128"
        raise Malformed(line, f"{name} {reason}")
