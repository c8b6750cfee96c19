"""YAML as values, within bounds and with every text as it was written. Pure.

Nothing is constructed from tags, and what aliases stand for is counted before any of it is built: a small
document cannot become a large one.
"""

import math
from collections.abc import Iterator
from typing import Final

import yaml
from yaml import events
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from remuda.core.errors import Invalid

BYTES_MAX: Final = 1 << 20
PARTS_MAX: Final = 5000  # With what aliases stand for. They are read in 50 ms, on the event loop.
DEPTH_MAX: Final = 32
NUMBER_CHARS_MAX: Final = 64  # Reading a number takes time by the square of its length.

Value = str | list["Value"] | dict[str, "Value"] | None

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS: Final = "tag:yaml.org,2002:"
_KINDS: Final = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_PLAIN_TAGS: Final = frozenset(f"{_TAGS}{kind}" for kind in _KINDS)
_CONSTRUCTOR: Final = yaml.constructor.SafeConstructor()


class Plain(str):
    """A text without quotes, which stands for a number or a truth value where no text is asked for."""

    __slots__ = ("meant",)

    meant: int | float | bool


def parse(text: str) -> Value:
    """What the document says. Invalid, naming the line where there is one, for what cannot be read."""
    if len(text.encode(errors="replace")) > BYTES_MAX:
        raise Invalid(f"it has more than {BYTES_MAX >> 20} MiB")
    try:
        _check_size(yaml.parse(text, Loader=_LOADER))
        root = yaml.compose(text, Loader=_LOADER)
        return None if root is None else _value(root)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise Invalid(f"it is not YAML: {line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise Invalid(f"it is not YAML: {str(error).splitlines()[0]}") from None
    except UnicodeError:
        raise Invalid("it holds characters that are none") from None


def _check_size(stream: Iterator[events.Event]) -> None:
    """Before anything is built: how many parts the document has, those behind aliases counted each time."""
    opened: list[tuple[str | None, int]] = []  # Anchors of what is open, and the count when it began.
    sizes: dict[str, int] = {}
    count = 0
    for event in stream:
        if isinstance(event, events.AliasEvent):
            count += sizes.get(event.anchor or "", 0)
        elif isinstance(event, events.CollectionStartEvent):
            opened.append((event.anchor, count))
            count += 1
        elif isinstance(event, events.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = count - before
        elif isinstance(event, events.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
        if len(opened) > DEPTH_MAX:
            raise Invalid(f"{_at(event)}it is nested more than {DEPTH_MAX} deep")
        if count > PARTS_MAX:
            raise Invalid(f"{_at(event)}it has more than {PARTS_MAX} parts")


def _at(part: events.Event | Node) -> str:
    return f"line {part.start_mark.line + 1}: " if part.start_mark else ""


def _value(node: Node, depth: int = 0) -> Value:
    if node.tag not in _PLAIN_TAGS:
        raise Invalid(f"{_at(node)}the tag {node.tag} is not allowed")
    if depth > DEPTH_MAX:  # Aliases lead deeper than what is written.
        raise Invalid(f"{_at(node)}it is nested more than {DEPTH_MAX} deep")
    match node:
        case ScalarNode():
            return _scalar(node)
        case SequenceNode():
            return [_value(item, depth + 1) for item in node.value]
        case MappingNode():
            return _map(node, depth)
    raise AssertionError(f"{node} is no YAML node")


def _scalar(node: ScalarNode) -> str | None:
    if not node.style and node.tag == f"{_TAGS}null":
        return None
    numeric = not node.style and node.tag.removeprefix(_TAGS) in ("int", "float", "bool")
    if numeric and len(node.value) <= NUMBER_CHARS_MAX:
        try:
            meant = _CONSTRUCTOR.construct_object(node)
        except (ValueError, KeyError, OverflowError):  # A tag says what it is, and it is not.
            return str(node.value)
        if math.isfinite(meant):
            plain = Plain(node.value)
            plain.meant = meant
            return plain
    return str(node.value)


def _map(node: MappingNode, depth: int) -> dict[str, Value]:
    own: dict[str, Value] = {}
    merged: dict[str, Value] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise Invalid(f"{_at(key)}a key must be a word")
        if key.tag == f"{_TAGS}merge":
            for base in value.value if isinstance(value, SequenceNode) else (value,):
                if not isinstance(base, MappingNode):
                    raise Invalid(f"{_at(key)}<< can only merge maps")
                merged = _map(base, depth + 1) | merged
        elif key.value in own:
            raise Invalid(f"{_at(key)}{key.value[:40]} stands twice")
        else:
            own[key.value] = _value(value, depth + 1)
    return merged | own
