"""Who has which backend: from reports, and from what workers without reports listed when asked. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.core.ids import BootId, NodeId
from remuda.fleet.fleet import Standing
from remuda.fleet.health import NodeStatus
from remuda.fleet.model import Node, NodeType
from remuda.gallery.lookup import Found
from remuda.gallery.references import is_image, same_repository
from remuda.gallery.resolve import uris_of
from remuda.ops.observations import NodeView
from remuda.wire.nodes import InstalledArtifact

_COUNTED: Final = (NodeStatus.HEALTHY, NodeStatus.UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Holding:
    """One backend on one node."""

    standing: Standing
    artifact: InstalledArtifact


def foreign(node: Node) -> bool:
    """Its worker is LocalAI's: it sends no reports and knows nothing of ours."""
    return not node.version and node.report is None


def installed(node: NodeView) -> tuple[InstalledArtifact, ...] | None:
    """What the node has, as far as its present life has told; None when it has not."""
    if node.reports:
        return None if node.report is None else node.report.installed
    listed = node.inventory
    return None if listed is None or listed.boot != node.boot else listed.backends


def counted(node: NodeView) -> bool:
    """What it has is part of the picture: it was let in, and is neither away for long nor about to leave."""
    standing = node.standing
    return standing.node.node_type is NodeType.BACKEND and standing.status in _COUNTED


def from_reference(artifact: InstalledArtifact, entry: Found | None) -> bool:
    """It was installed from an image or archive that somebody named, not from the gallery that has the name.

    Older workers do not tell the gallery: an entry of that name counts as theirs if it has the same image.
    """
    fetched = is_image(artifact.uri) or artifact.uri.startswith(("http://", "https://"))
    if not fetched or artifact.gallery_url:
        return False
    known = () if entry is None else uris_of(entry.entry)
    return not any(same_repository(artifact.uri, uri) for uri in known)


def to_ask(nodes: Iterable[NodeView]) -> list[tuple[NodeId, BootId]]:
    """Those that tell only when they are asked."""
    return [
        (node.standing.node.id, node.boot) for node in nodes if foreign(node.standing.node) and counted(node)
    ]


def holdings(nodes: Sequence[NodeView]) -> Mapping[str, tuple[Holding, ...]]:
    """Every installed backend by its own name, with the nodes that have it."""
    held = defaultdict[str, list[Holding]](list)
    for node in nodes:
        for artifact in installed(node) or ():
            held[artifact.name].append(Holding(node.standing, artifact))
    return {name: tuple(held[name]) for name in sorted(held)}


def found(node: NodeView, names: Iterable[str]) -> tuple[InstalledArtifact, ...]:
    """What it has under any of these names, letter case aside."""
    wanted = {name.lower() for name in names}
    return tuple(
        one for one in installed(node) or () if wanted & {one.name.lower(), one.alias.lower()} - {""}
    )
