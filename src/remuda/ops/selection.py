"""The nodes of an operation: which are meant (all, some by name or id, or those with certain labels), and
which have which backend installed, from reports, or from lists of workers that send none. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Standing
from remuda.fleet.model import labels_match
from remuda.fleet.verdicts import ObservedNode, installed, is_counted, is_localai, why_no_target
from remuda.gallery.model import Found
from remuda.gallery.references import is_image, same_repository
from remuda.gallery.resolve import uris_of
from remuda.wire.nodes import InstalledArtifact

_ONE_NODE: Final = "node "


@dataclass(frozen=True, slots=True)
class Selection:
    names: tuple[str, ...] = ()  # Or ids.
    selector: str = ""  # key=value,key=value: all of them.

    @property
    def is_all(self) -> bool:
        return not self.names and not self.selector

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"{_ONE_NODE}{self.names[0]}"
        if self.names:
            return f"nodes {', '.join(self.names)}"
        return f"labels {self.selector}" if self.selector else "all"


ALL = Selection()


def names_one_node(selection: str) -> bool:
    """Whether a stored selection, which is kept in words, was for a single node by its name."""
    return selection.startswith(_ONE_NODE)


def select(selection: Selection, standings: Sequence[Standing]) -> list[Standing]:
    """The nodes that are meant, by name. Those that wait for approval, and agents, are never.

    Invalid for a selector that cannot be read; NotFound for a name that no node has; Conflict when no node
    is left.
    """
    if selection.names and selection.selector:
        raise Invalid("name nodes, or give a selector; not both")
    if selection.names:
        chosen = {one.node.id: one for one in (_named(name, standings) for name in selection.names)}
        return sorted(chosen.values(), key=lambda one: one.node.name)
    wanted = parse_selector(selection.selector) if selection.selector else {}
    able = [one for one in standings if not why_no_target(one)]
    meant = [one for one in able if labels_match(one.node.labels, wanted)]
    if not meant:
        raise _no_nodes(selection, able, standings)
    return sorted(meant, key=lambda one: one.node.name)


def parse_selector(text: str) -> Mapping[str, str]:
    """`key=value,key=value`. Invalid, naming the part that is wrong."""
    wanted: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals:
            raise Invalid(
                f"the selector {text[:200]!r} cannot be read: {part.strip()[:80]!r} is not key=value",
                hint="write it like gpu.vendor=nvidia,room=attic",
            )
        if wanted.setdefault(key, value) != value:
            raise Invalid(f"the selector gives {key[:80]!r} two different values")
    return wanted


def _named(name: str, standings: Sequence[Standing]) -> Standing:
    found = next((one for one in standings if name in (one.node.id, one.node.name)), None)
    if found is None:
        alike = get_close_matches(name, [one.node.name for one in standings], n=3)
        hint = f"did you mean {' or '.join(alike)}?" if alike else "`remuda nodes` lists those there are"
        raise NotFound(f"there is no node {name[:200]!r}", hint=hint)
    if why := why_no_target(found):
        raise Conflict(why)
    return found


def _no_nodes(selection: Selection, able: Sequence[Standing], standings: Sequence[Standing]) -> Conflict:
    if able:
        return Conflict(
            f"no node has the labels {selection.selector}",
            hint="`remuda nodes show NODE` lists the labels of a node",
        )
    waiting = [one.node.name for one in standings if not one.node.approved]
    if waiting:
        return Conflict(
            f"no node is available; waiting for approval: {', '.join(waiting[:5])}",
            hint="approve nodes with: remuda nodes approve NAME",
        )
    return Conflict("there are no nodes yet", hint="start a worker on a machine with: remuda join")


@dataclass(frozen=True, slots=True)
class Holding:
    """One backend on one node."""

    standing: Standing
    artifact: InstalledArtifact


def from_reference(artifact: InstalledArtifact, entry: Found | None) -> bool:
    """It was installed from an image or archive named in a request, not from the gallery that has the name.

    Older workers do not tell the gallery: an entry of that name counts as theirs if it has the same image.
    """
    fetched = is_image(artifact.uri) or artifact.uri.startswith(("http://", "https://"))
    if not fetched or artifact.gallery_url:
        return False
    known = () if entry is None else uris_of(entry.entry)
    return not any(same_repository(artifact.uri, uri) for uri in known)


def nodes_to_ask(nodes: Iterable[ObservedNode]) -> list[tuple[NodeId, BootId]]:
    """Those without reports: they have to be asked what is installed."""
    return [
        (node.standing.node.id, node.boot)
        for node in nodes
        if is_localai(node.standing.node) and is_counted(node)
    ]


def holdings(nodes: Sequence[ObservedNode]) -> Mapping[str, tuple[Holding, ...]]:
    """Every installed backend by its own name, with the nodes that have it."""
    held = defaultdict[str, list[Holding]](list)
    for node in nodes:
        for artifact in installed(node) or ():
            held[artifact.name].append(Holding(node.standing, artifact))
    return {name: tuple(held[name]) for name in sorted(held)}


def installed_under(node: ObservedNode, names: Iterable[str]) -> tuple[InstalledArtifact, ...]:
    """What it has under any of these names, letter case aside."""
    wanted = {name.lower() for name in names}
    return tuple(
        one for one in installed(node) or () if wanted & {one.name.lower(), one.alias.lower()} - {""}
    )
