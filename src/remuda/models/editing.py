"""Changes to a model's YAML that leave all other bytes as they are: comments, unknown keys, order and layout.
Pure.

What was changed is read back and compared with what was meant. Where the two differ (a value that others
refer to by an anchor, say) the change is refused: only a person can tell what the text should be then.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import yaml
from pydantic import JsonValue
from yaml import events

from remuda.core.errors import Invalid
from remuda.core.yaml_tree import Value
from remuda.models.config import parse_document

CHANGES_MAX: Final = 50
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STEP: Final = "  "
YamlKeys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One key, by the keys that lead to it. `value` is YAML on one line; None: the key is removed."""

    keys: YamlKeys
    value: str | None

    @property
    def name(self) -> str:
        return ".".join(self.keys)


def assignment(text: str) -> Change:
    """From `parameters.temperature=0.6`; the value is YAML where it can be, and else plain text. `null`
    removes the key."""
    name, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in name.split("."))
    if not equals or not all(keys):
        raise Invalid(f"{text[:80]!r} is not KEY=VALUE", hint="such as parameters.temperature=0.6")
    return Change(keys, _inline(value.strip()))


def _inline(text: str) -> str | None:
    """As a value that stands on one line."""
    try:
        meant = _values(f"x: {text}\n").get("x") if "\n" not in text else text
    except Invalid:
        meant = ""
    if meant is None and text:
        return None
    written = text if isinstance(meant, list | dict) or _scalar(text) is not None or _quoted(text) else ""
    return written or json.dumps(text, ensure_ascii=False)


def _quoted(text: str) -> bool:
    try:
        return text[:1] in "'\"" and len(text) > 1 and isinstance(_values(f"x: {text}\n").get("x"), str)
    except Invalid:
        return False


def changes_of(patch: Mapping[str, JsonValue], before: YamlKeys = ()) -> Iterator[Change]:
    """From a JSON merge patch: maps are merged key by key, null removes, anything else replaces."""
    for key, value in patch.items():
        match value:
            case dict():
                yield from changes_of(value, (*before, key))
            case None:
                yield Change((*before, key), None)
            case str():
                plain = _plain(value)
                yield Change((*before, key), value if plain else json.dumps(value, ensure_ascii=False))
            case _:
                yield Change((*before, key), json.dumps(value, ensure_ascii=False))


def _plain(text: str) -> bool:
    """Whether it needs no quotes to be this very text, and not a number."""
    return type(_scalar(text)) is str


def _scalar(text: str) -> Value:
    """What this text means as a value without quotes: on a line of its own, and, since its map may be
    written within braces, there too. None where it does not mean itself."""
    if not text or "\n" in text:
        return None
    try:
        found = _values(f"x: {text}\ny: {{z: {text}}}\n")
    except Invalid:
        return None
    meant = found.get("x")
    return meant if meant == text and found == {"x": meant, "y": {"z": meant}} else None


def edit(text: str, changes: Sequence[Change]) -> str:
    """The same document with these changes, one after another. Invalid, naming the key, for one that cannot
    be made without touching more than its own lines."""
    if len(changes) > CHANGES_MAX:
        raise Invalid(f"{len(changes)} changes at once; at most {CHANGES_MAX} are accepted")
    for change in changes:
        wanted = _meant(_values(text), change)
        text = _edited(text, change)
        try:
            found = _values(text)
        except Invalid as error:
            raise _refused(change, error.message) from None
        if _written(found) != _written(wanted):
            raise _refused(change, "more than this key would change")
    return text


def _written(value: Value) -> Value:
    """Without keys that have no value, and maps that have no keys: neither means anything."""
    if not isinstance(value, dict):
        return value
    kept: dict[str, Value] = {
        key: inner for key, found in value.items() if (inner := _written(found)) is not None
    }
    return kept or None


def _refused(change: Change, why: str) -> Invalid:
    return Invalid(
        f"{change.name}: cannot be changed by itself: {why}",
        hint="edit the whole text: remuda models edit MODEL",
        param=change.name,
    )


def _values(text: str) -> dict[str, Value]:
    found = parse_document(text).value
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Invalid("must be a map of keys")
    return found


def _meant(before: dict[str, Value], change: Change) -> dict[str, Value]:
    first, rest = change.keys[0], change.keys[1:]
    after = dict(before)
    if not rest and change.value is None:
        after.pop(first, None)
    elif not rest:
        after[first] = _values(f"x: {change.value}\n")["x"]
    else:
        inner = before.get(first)
        if inner is not None and not isinstance(inner, dict):
            raise Invalid(f"{first}: not a map of keys, so {change.name} cannot be set", param=first)
        if inner is None and change.value is None:
            return after
        after[first] = _meant(inner or {}, Change(rest, change.value))
    return after


# Where things are in the text.


@dataclass(eq=False, slots=True)
class _Node:
    start: int
    end: int  # Behind its last character, and no comment.
    flow: bool = True  # On one line or within brackets; else a block.
    null: bool = False
    pairs: "list[tuple[_Node, str, _Node]]" = field(default_factory=list)  # Key, its text, value.
    is_map: bool = False

    def get(self, key: str) -> "tuple[_Node, _Node] | None":
        return next(((name, value) for name, text, value in self.pairs if text == key), None)


def _tree(text: str) -> _Node | None:
    """Of the document's root. It was parsed before, and so is within bounds."""
    stream = iter(yaml.parse(text, Loader=_LOADER))
    for event in stream:
        if isinstance(event, events.NodeEvent):
            root = _node(event, stream)
            _trim(root, text)
            return root
    return None


def _trim(node: _Node, text: str) -> None:
    """Blank lines behind a block belong to what follows, unless the block says that it keeps them."""
    for _, _, value in node.pairs:
        _trim(value, text)
    keeps = "+" in text[node.start : text.find("\n", node.start)]
    while not node.flow and not keeps and text[node.end - 2 : node.end] == "\n\n":
        node.end -= 1


def _node(event: events.Event, stream: Iterator[events.Event]) -> _Node:
    start, end = _span(event)
    match event:
        case events.MappingStartEvent():
            return _map(start, stream, flow=bool(event.flow_style))
        case events.SequenceStartEvent():
            return _list(start, stream, flow=bool(event.flow_style))
        case events.ScalarEvent():
            null = event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
            return _Node(start, end, flow=event.style not in ("|", ">"), null=null)
    return _Node(start, end)


def _span(event: events.Event) -> tuple[int, int]:
    assert event.start_mark is not None, "events of a text know where they are"
    assert event.end_mark is not None, "events of a text know where they are"
    return event.start_mark.index, event.end_mark.index


def _map(start: int, stream: Iterator[events.Event], *, flow: bool) -> _Node:
    made = _Node(start, start, flow, is_map=True)
    for event in stream:
        if isinstance(event, events.MappingEndEvent):
            made.end = _span(event)[1] if flow else made.end
            break
        key = _node(event, stream)
        value = _node(next(stream), stream)
        made.pairs.append((key, event.value if isinstance(event, events.ScalarEvent) else "", value))
        made.end = max(value.end, key.end)
    return made


def _list(start: int, stream: Iterator[events.Event], *, flow: bool) -> _Node:
    made = _Node(start, start, flow)
    for event in stream:
        if isinstance(event, events.SequenceEndEvent):
            made.end = _span(event)[1] if flow else made.end
            break
        made.end = _node(event, stream).end
    return made


# Changing it.


def _edited(text: str, change: Change) -> str:
    root = _tree(text)
    if root is None or root.null:
        return (
            text
            if change.value is None
            else _with_line(text, len(text), _block(change.keys, change.value, ""))
        )
    return _in_map(text, root, change.keys, change.value)


def _in_map(text: str, node: _Node, keys: YamlKeys, value: str | None) -> str:
    found = node.get(keys[0])
    if found is None:
        return text if value is None else _added(text, node, keys, value)
    key, there = found
    if len(keys) == 1:
        return _removed(text, node, key, there) if value is None else _replaced(text, key, there, value)
    if there.is_map and there.pairs:
        return _in_map(text, there, keys[1:], value)
    if value is None:
        return text
    if there.is_map or there.null or node.flow:  # {}, ~ or nothing behind the colon.
        return (
            _replaced(text, key, there, _flow(keys[1:], value))
            if node.flow
            else _filled(text, key, there, keys[1:], value)
        )
    return text  # Neither: it was refused before.


def _replaced(text: str, key: _Node, there: _Node, value: str) -> str:
    if there.flow and there.end > there.start:
        return text[: there.start] + value + text[there.end :]
    end = there.end
    if not there.flow:  # A block ends with its line.
        while end > there.start and text[end - 1] in "\r\n":
            end -= 1
    colon = text.index(":", key.end) + 1
    return f"{text[:colon]} {value}{text[max(end, colon) :]}"


def _filled(text: str, key: _Node, there: _Node, keys: YamlKeys, value: str) -> str:
    """Keys below one that had none."""
    colon = text.index(":", key.end) + 1
    emptied = text[:colon] + text[max(there.end, colon) :]
    return _with_line(emptied, colon, _block(keys, value, _indentation(text, key) + _STEP))


def _added(text: str, node: _Node, keys: YamlKeys, value: str) -> str:
    if node.flow:
        entry = _flow_entry(keys, value)
        if node.pairs:
            return f"{text[: _behind(node)]}, {entry}{text[_behind(node) :]}"
        return f"{text[: node.start + 1]}{entry}{text[node.end - 1 :]}"
    return _with_line(text, node.end, _block(keys, value, _indentation(text, node.pairs[0][0])))


def _behind(node: _Node) -> int:
    key, _, value = node.pairs[-1]
    return max(key.end, value.end)


def _removed(text: str, node: _Node, key: _Node, there: _Node) -> str:
    end = max(there.end, key.end)
    if not node.flow:
        line = text.rfind("\n", 0, key.start) + 1
        if text[line : key.start].strip():  # The first key of a map in a list, say.
            return text
        return text[:line] + text[_next_line(text, end) :]
    place = next(number for number, (name, _, _) in enumerate(node.pairs) if name is key)
    if place:
        before = node.pairs[place - 1]
        return text[: max(before[0].end, before[2].end)] + text[end:]
    if len(node.pairs) > 1:
        return text[: key.start] + text[node.pairs[1][0].start :]
    return text[: key.start] + text[end:]


def _with_line(text: str, after: int, lines: str) -> str:
    """These lines behind the line in which `after` is."""
    place = (
        after
        if after and text[after - 1] == "\n" and not text[after:].startswith("\n")
        else _next_line(text, after)
    )
    between = "\n" if place and text[place - 1] != "\n" else ""
    return f"{text[:place]}{between}{lines}\n{text[place:]}"


def _next_line(text: str, place: int) -> int:
    if place and text[place - 1] == "\n":
        return place
    found = text.find("\n", place)
    return len(text) if found < 0 else found + 1


def _indentation(text: str, node: _Node) -> str:
    line = text.rfind("\n", 0, node.start) + 1
    return " " * (node.start - line)


def _block(keys: YamlKeys, value: str, indentation: str) -> str:
    lines = [f"{indentation}{_STEP * depth}{_key(key)}:" for depth, key in enumerate(keys)]
    return "\n".join(lines) + f" {value}"


def _flow(keys: YamlKeys, value: str) -> str:
    return f"{{{_flow_entry(keys, value)}}}" if keys else value


def _flow_entry(keys: YamlKeys, value: str) -> str:
    return f"{_key(keys[0])}: {_flow(keys[1:], value)}"


def _key(key: str) -> str:
    return (
        key if _plain(key) and not any(mark in key for mark in "{}[],&*#?|<>=!%@`:'\"") else json.dumps(key)
    )
