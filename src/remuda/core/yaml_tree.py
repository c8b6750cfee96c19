"""YAML within bounds, as a tree of texts, lists and maps, each with its line. Pure.

Nothing is constructed from tags, aliases stay shared, and merge keys are resolved once per map: a small
document cannot become a large one. Every text stays as written, so that version 1.10 is not a number.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml
from yaml import events

from remuda.core.errors import Invalid

MERGED_KEYS_MAX: Final = 1_000_000  # In all maps of a document together.

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "tag:yaml.org,2002:merge"
_KINDS: Final = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_PLAIN_TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in _KINDS)
_NUMBER_TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool"))
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})

Value = str | list["Value"] | dict[str, "Value"] | None


@dataclass(frozen=True, slots=True)
class YamlLimits:
    bytes: int
    parts: int
    depth: int


@dataclass(frozen=True, slots=True)
class YamlText:
    value: str
    line: int
    tag: str = ""  # Only a tag that no document needs; such a node is refused where it is used.
    null: bool = False
    plain: bool = False  # Without quotes: it may mean a number or a truth value.
    merges: bool = False  # As a key: what it stands for is merged into its map.


@dataclass(eq=False, slots=True)
class List:
    line: int
    tag: str = ""
    items: "list[YamlNode]" = field(default_factory=list)
    closed: bool = False


@dataclass(eq=False, slots=True)
class Map:
    line: int
    tag: str = ""
    pairs: "list[tuple[YamlNode, YamlNode]]" = field(default_factory=list)
    key: "YamlNode | None" = None  # Read, and waiting for its value.
    closed: bool = False


YamlNode = YamlText | List | Map


class Malformed(Exception):
    """A part of the document that cannot be used; the parts beside it can."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def parse(content: bytes | str, limits: YamlLimits, *, more_documents: bool = False) -> YamlNode | None:
    """The root of its document; None when it is empty. Invalid, naming the line, for what is not YAML, or too
    large. With `more_documents` others may follow, and are not looked at."""
    try:
        encoded = content if isinstance(content, bytes) else content.encode()
        if len(encoded) > limits.bytes:
            raise Invalid(f"it has more than {_size(limits.bytes)}")
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        builder = _Builder(limits)
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
            if more_documents and isinstance(event, events.DocumentEndEvent):
                break
    except UnicodeDecodeError as error:
        raise Invalid(f"it is not UTF-8 text (byte {error.start})") from None
    except UnicodeEncodeError:
        raise Invalid("it holds half of a surrogate pair, which is not a character") from None
    except yaml.MarkedYAMLError as error:
        raise Invalid(_not_yaml(error, text)) from None
    except yaml.YAMLError as error:
        raise Invalid(f"not valid YAML: {str(error).splitlines()[0]}") from None
    return builder.root


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> str:
    problem, mark = error.problem or error.context or "it cannot be parsed", error.problem_mark
    if mark is None:
        return f"not valid YAML: {problem}"
    lines = text.rstrip("\n").split("\n")
    number = min(mark.line, len(lines) - 1)  # A document may end too early.
    line = lines[number]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        problem = "a tab is used for indentation; use spaces"
    return f"line {number + 1}: not valid YAML: {problem}"


class _Builder:
    """Turns events into nodes without recursion: depth costs nothing and is bounded all the same."""

    def __init__(self, limits: YamlLimits) -> None:
        self.root: YamlNode | None = None
        self._limits = limits
        self._open: list[List | Map] = []
        self._anchors: dict[str, YamlNode] = {}
        self._count = 0

    def take(self, event: events.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case events.AliasEvent():
                self._place(self._aliased(event.anchor, line), line)
            case events.ScalarEvent():
                self._begin(_text(event, line), event.anchor, line)
            case events.SequenceStartEvent():
                self._begin(List(line, _odd(event.tag)), event.anchor, line)
            case events.MappingStartEvent():
                self._begin(Map(line, _odd(event.tag)), event.anchor, line)
            case events.SequenceEndEvent() | events.MappingEndEvent():
                self._open.pop().closed = True

    def _begin(self, node: YamlNode, anchor: str | None, line: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        self._place(node, line)
        if not isinstance(node, YamlText):
            self._open.append(node)
            if len(self._open) > self._limits.depth:
                raise Invalid(f"line {line}: it is nested more than {self._limits.depth} deep")

    def _place(self, node: YamlNode, line: int) -> None:
        self._count += 1
        if self._count > self._limits.parts:
            raise Invalid(f"line {line}: it has more than {self._limits.parts} parts")
        match self._open[-1] if self._open else None:
            case None if self.root is not None:
                raise Invalid(f"line {line}: a second document begins here; only one is read from a file")
            case None:
                self.root = node
            case List() as parent:
                parent.items.append(node)
            case Map(key=None) as parent:
                parent.key = node
            case Map(key=YamlText() | List() | Map() as key) as parent:
                parent.pairs.append((key, node))
                parent.key = None

    def _aliased(self, anchor: str | None, line: int) -> YamlNode:
        node = self._anchors.get(anchor or "")
        if node is None:
            raise Invalid(f"line {line}: *{anchor} is an undefined alias")
        if not isinstance(node, YamlText) and not node.closed:
            raise Invalid(f"line {line}: *{anchor} contains itself")
        return node


def _text(event: events.ScalarEvent, line: int) -> YamlText:
    plain = event.implicit[0] or (not event.style and event.tag in _NUMBER_TAGS)
    merges = event.value == "<<" and (plain or event.tag == _MERGE)
    null = event.implicit[0] and event.value in _NULLS
    return YamlText(event.value, line, _odd(event.tag), null=null, plain=plain, merges=merges)


def _odd(tag: str | None) -> str:
    return "" if tag in (None, "!") or tag in _PLAIN_TAGS else tag


class Merger:
    """Maps with their merge keys resolved: own keys win, then those of the first map merged."""

    def __init__(self, depth_max: int) -> None:
        self._depth_max = depth_max
        self._known: dict[int, dict[str, YamlNode] | Malformed] = {}
        self._left = MERGED_KEYS_MAX

    def flatten(self, node: Map, depth: int = 0) -> Mapping[str, YamlNode]:
        """Raises Malformed for a map that cannot be read. The document must stay alive meanwhile."""
        if id(node) not in self._known:
            try:
                self._known[id(node)] = self._flattened(node, depth)
            except Malformed as problem:  # Kept too: many maps may merge the same bad one.
                self._known[id(node)] = problem
        known = self._known[id(node)]
        if isinstance(known, Malformed):
            raise known
        return known

    def _flattened(self, node: Map, depth: int) -> dict[str, YamlNode]:
        if node.tag:
            raise Malformed(node.line, f"the tag {node.tag} is not allowed")
        if depth > self._depth_max:
            raise Malformed(node.line, f"more than {self._depth_max} merge keys lead from one to the next")
        own: dict[str, YamlNode] = {}
        merged: list[Map] = []
        for key, value in node.pairs:
            if not isinstance(key, YamlText):
                raise Malformed(key.line, "a key must be a word")
            if key.merges:
                merged.extend(_merged_maps(value, key.line))
            elif key.value in own:
                raise Malformed(key.line, f"{key.value[:40]}: given twice")
            else:
                own[key.value] = value
        for base in merged:
            self._inherit(own, self.flatten(base, depth + 1), node.line)
        return own

    def _inherit(self, own: dict[str, YamlNode], base: Mapping[str, YamlNode], line: int) -> None:
        self._left -= len(base) + 1
        if self._left < 0:
            raise Malformed(line, f"merge keys expand to more than {MERGED_KEYS_MAX} fields")
        for name, value in base.items():
            own.setdefault(name, value)


def _merged_maps(value: YamlNode, line: int) -> Iterator[Map]:
    for part in value.items if isinstance(value, List) else (value,):
        if not isinstance(part, Map):
            raise Malformed(line, "<< can only merge maps")
        yield part


YamlPath = tuple[int | str, ...]  # Keys and places in lists, from the root.


class _Values:
    """What a tree stands for. Parts behind an alias count each time that it is used."""

    def __init__(self, limits: YamlLimits, scalar: Callable[[YamlText], str | None]) -> None:
        self.lines: dict[YamlPath, int] = {}
        self._limits = limits
        self._scalar = scalar
        self._merger = Merger(limits.depth)
        self._left = limits.parts

    def of(self, node: YamlNode, path: YamlPath = (), line: int = 0) -> Value:
        self._left -= 1
        self.lines[path] = line or node.line
        if self._left < 0:
            raise Malformed(node.line, f"it has more than {self._limits.parts} parts")
        if len(path) > self._limits.depth:  # Aliases lead deeper than what is written.
            raise Malformed(node.line, f"it is nested more than {self._limits.depth} deep")
        if node.tag:
            raise Malformed(node.line, f"the tag {node.tag} is not allowed")
        match node:
            case YamlText():
                return self._scalar(node)
            case List(items=items):
                return [self.of(item, (*path, number)) for number, item in enumerate(items)]
            case Map():
                return self._map(node, path)

    def _map(self, node: Map, path: YamlPath) -> dict[str, Value]:
        """A value is where its key is, which may be a line before; a merged one is where it was written."""
        own = {key.value: key.line for key, _ in node.pairs if isinstance(key, YamlText)}
        pairs = self._merger.flatten(node)
        return {key: self.of(value, (*path, key), own.get(key, 0)) for key, value in pairs.items()}


@dataclass(frozen=True, slots=True)
class Located:
    """A document and the line of each of its parts."""

    value: Value
    lines: Mapping[YamlPath, int]

    def line(self, path: YamlPath) -> int:
        """Of this part, or of the nearest one around it; 0: it is nowhere."""
        for end in range(len(path), 0, -1):
            if found := self.lines.get(path[:end]):
                return found
        return 0


def located_values(
    content: bytes | str, limits: YamlLimits, scalar: Callable[[YamlText], str | None]
) -> Located:
    """The one document as lists, maps and what `scalar` makes of its texts; None when it is empty. Invalid,
    naming the line, for what cannot be read."""
    root = parse(content, limits)
    found = _Values(limits, scalar)
    try:
        return Located(None if root is None else found.of(root), found.lines)
    except Malformed as error:
        raise Invalid(f"line {error.line}: {error.reason}") from None


def values(content: bytes | str, limits: YamlLimits, scalar: Callable[[YamlText], str | None]) -> Value:
    """The same without lines."""
    return located_values(content, limits, scalar).value


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
