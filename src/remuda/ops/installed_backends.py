"""Which nodes have which backend installed: from reports, or from lists of workers that send none. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remuda.core.ids import BootId, NodeId
from remuda.fleet.fleet import Standing
from remuda.fleet.verdicts import ObservedNode, installed, is_counted, is_localai
from remuda.gallery.model import Found
from remuda.gallery.references import is_image, same_repository
from remuda.gallery.resolve import uris_of
from remuda.wire.nodes import InstalledArtifact


@dataclass(frozen=True, slots=True)
class Holding:
    """One backend on one node."""

    standing: Standing
    artifact: InstalledArtifact


def from_reference(artifact: InstalledArtifact, entry: Found | None) -> bool:
    """It was installed from an image or archive that somebody named, not from the gallery that has the name.

    Older workers do not tell the gallery: an entry of that name counts as theirs if it has the same image.
    """
    fetched = is_image(artifact.uri) or artifact.uri.startswith(("http://", "https://"))
    if not fetched or artifact.gallery_url:
        return False
    known = () if entry is None else uris_of(entry.entry)
    return not any(same_repository(artifact.uri, uri) for uri in known)


def to_ask(nodes: Iterable[ObservedNode]) -> list[tuple[NodeId, BootId]]:
    """Those that tell only when they are asked."""
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


def found(node: ObservedNode, names: Iterable[str]) -> tuple[InstalledArtifact, ...]:
    """What it has under any of these names, letter case aside."""
    wanted = {name.lower() for name in names}
    return tuple(
        one for one in installed(node) or () if wanted & {one.name.lower(), one.alias.lower()} - {""}
    )
