"""Gallery indexes: YAML to entries. Pure.

One bad entry does not lose the others: it is left out, and a complaint names it, its line and why. Unknown
fields are skipped, for indexes are newer than programs.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from remuda.core.errors import Invalid
from remuda.core.yaml_tree import List, Malformed, Map, Merger, YamlLimits, YamlNode, YamlText, parse
from remuda.gallery.entry_fields import EntryFields
from remuda.gallery.model import Complaint, GalleryEntry, GalleryIndex

LIMITS: Final = YamlLimits(bytes=8 << 20, parts=400_000, depth=16)
ENTRIES_MAX: Final = 10_000


class _Entry(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def line(self) -> int: ...


E = TypeVar("E", bound=_Entry)


def read_index(content: bytes) -> GalleryIndex:
    """An index of backends. Invalid, naming the line, when the document as a whole cannot be read."""
    return read_entries(content, _backend)


def read_entries(content: bytes, entry_of: Callable[[Map, Merger], E]) -> GalleryIndex[E]:
    """The usable entries, each as `entry_of` reads it, which raises Malformed for what cannot be used."""
    root = parse(content, LIMITS, more_documents=True)  # As peers do, who read the first one.
    if root is None:
        raise Invalid("it is empty")
    if not isinstance(root, List):
        raise Invalid(f"line {root.line}: an index is a list of entries, each beginning with a dash")
    if len(root.items) > ENTRIES_MAX:
        raise Invalid(f"it has {len(root.items)} entries, more than the {ENTRIES_MAX} allowed")
    merger = Merger(LIMITS.depth)
    entries: dict[str, E] = {}
    complaints: list[Complaint] = []
    for number, node in enumerate(root.items, 1):
        try:
            if not isinstance(node, Map):
                raise Malformed(node.line, "an entry is a map of fields")
            entry = entry_of(node, merger)
            if (first := entries.get(entry.name.lower())) is not None:
                raise Malformed(entry.line, f"the name was taken on line {first.line}, which counts")
        except Malformed as problem:
            complaints.append(Complaint(_called(node, number), problem.line, problem.reason))
        else:
            entries[entry.name.lower()] = entry
    return GalleryIndex(tuple(entries.values()), tuple(complaints))


def _called(node: YamlNode, number: int) -> str:
    """The entry's name where it can be made out, however bad the rest."""
    if isinstance(node, Map):
        for key, value in node.pairs:
            if (
                isinstance(key, YamlText)
                and key.value == "name"
                and isinstance(value, YamlText)
                and value.value
            ):
                return value.value[:80]
    return f"entry {number}"


def _backend(node: Map, merger: Merger) -> GalleryEntry:
    fields = EntryFields(node, merger)
    entry = GalleryEntry(
        name=fields.word("name"),
        line=node.line,
        alias=fields.word("alias", required=False),
        uri=fields.uri("uri"),
        mirrors=fields.uris("mirrors"),
        capabilities=fields.capabilities(),
        version=fields.text("version"),
        sha256=fields.sha256(),
        description=fields.text("description"),
        license=fields.text("license"),
        icon=fields.text("icon"),
        url=fields.text("url"),
        size=fields.text("size"),
        urls=fields.texts("urls"),
        tags=fields.texts("tags"),
        manifest=fields.document("remuda"),
    )
    if not entry.uri and not entry.capabilities:
        raise Malformed(node.line, "it has neither a uri nor capabilities, so nothing can be installed")
    return entry
