"""Which installed backends have something newer, or differ between nodes. Pure.

It judges what nodes have now, so that an upgrade which has happened is an upgrade less at the next look.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.gallery.lookup import find
from remuda.gallery.model import Entry, Reading
from remuda.gallery.references import is_image
from remuda.ops.holdings import Holding, counted, foreign, holdings
from remuda.ops.sightings import NodeView

_DEVELOPMENT: Final = "-development"


@dataclass(frozen=True, slots=True)
class Upgrade:
    backend: str
    installed_version: str = ""
    available_version: str = ""
    installed_digest: str = ""
    available_digest: str = ""
    drift: tuple[Holding, ...] = ()  # Those that have something else than most.


def candidates(nodes: Sequence[NodeView], readings: Sequence[Reading]) -> dict[str, str]:
    """The installed backends that only a digest can tell apart, with the image to ask about."""
    compared = {name: entry for name, (entry, _) in _compared(nodes, readings).items()}
    return {name: entry.uri for name, entry in compared.items() if not entry.version and is_image(entry.uri)}


def upgrades(
    nodes: Sequence[NodeView], readings: Sequence[Reading], digests: Mapping[str, str]
) -> dict[str, Upgrade]:
    """By name. `digests` has what each image's tag stands for now, where that is known."""
    judged = {
        name: _judge(name, entry, held, digests) for name, (entry, held) in _compared(nodes, readings).items()
    }
    return {name: upgrade for name, upgrade in judged.items() if upgrade is not None}


def _compared(
    nodes: Sequence[NodeView], readings: Sequence[Reading]
) -> dict[str, tuple[Entry, tuple[Holding, ...]]]:
    held = holdings([node for node in nodes if counted(node)])
    pairs: dict[str, tuple[Entry, tuple[Holding, ...]]] = {}
    for name, holders in held.items():
        found = find(readings, name)
        superseded = not name.endswith(_DEVELOPMENT) and name + _DEVELOPMENT in held
        # What ships with Remuda is upgraded with its worker; a meta backend is no build.
        if found is None or superseded or found.entry.builtin or found.entry.meta:
            continue
        pairs[name] = found.entry, holders
    return pairs


def _judge(name: str, entry: Entry, holders: Sequence[Holding], digests: Mapping[str, str]) -> Upgrade | None:
    version, digest = _majority(holders)
    drift = tuple(one for one in holders if _pair(one) != (version, digest))
    if entry.version:
        # Nothing recorded counts as old: there is no telling, and after an upgrade there is.
        outdated = version != entry.version or bool(drift)
        return Upgrade(name, version, entry.version, digest, drift=drift) if outdated else None
    if not is_image(entry.uri):
        return Upgrade(name, installed_digest=digest, drift=drift) if drift else None
    available = digests.get(entry.uri, "")
    if not available:
        return None
    told = [one for one in holders if not _never_told(entry, one)]
    if all(one.artifact.digest == available for one in told):
        return None
    return Upgrade(name, installed_digest=digest, available_digest=available, drift=drift)


def _majority(holders: Iterable[Holding]) -> tuple[str, str]:
    """What most have; of equally many, the greatest, so that the answer does not depend on their order."""
    counts = Counter(map(_pair, holders))
    return max(counts, key=lambda pair: (counts[pair], pair))


def _pair(holding: Holding) -> tuple[str, str]:
    return holding.artifact.version, holding.artifact.digest


def _never_told(entry: Entry, holding: Holding) -> bool:
    """LocalAI's workers record no digest of an image that is written with oci://, however new it is."""
    return foreign(holding.standing.node) and entry.uri.startswith("oci://") and not holding.artifact.digest
