"""Which of the nodes that fit is the best for a new replica, and by what the others come after it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from remuda.fleet.model import Node
from remuda.scheduler.measured_speed import speed_class
from remuda.scheduler.model import NodeOffer, Resident


@dataclass(frozen=True, slots=True)
class NodeWishes:
    """Where requests would rather have their model: names of nodes, and labels as `key=value`."""

    prefer: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()

    def of(self, node: Node) -> int:
        """-1: preferred. 1: avoided, also if it is both."""
        if not (self.prefer or self.avoid):
            return 0
        called = {node.name, *(f"{key}={label.value}" for key, label in node.labels.items())}
        return 1 if called & self.avoid else -1 if called & self.prefer else 0


NO_WISHES: Final = NodeWishes()


def shared_wishes(asked: Iterable[NodeWishes]) -> NodeWishes:
    """One load is for all who wait for it: only what they have in common counts."""
    all_of = list(asked)
    if not all_of:
        return NO_WISHES
    return NodeWishes(
        frozenset.intersection(*(one.prefer for one in all_of)),
        frozenset.intersection(*(one.avoid for one in all_of)),
    )


class Rank(NamedTuple):
    """The smallest is the best: what stands first counts most."""

    unreached: bool
    unwished: int  # -1 for a preferred node where nothing has to go, 1 for one that is avoided.
    crowded: bool  # A further replica: not on a node of its own, nothing having to leave.
    without_files: int
    drops_files: bool
    evictions: int
    evicted_last_used: float  # Seconds since 1970; those that go first were used longest ago.
    without_backend: bool
    in_ram: bool
    slowness: int
    busy: int
    fullness: int
    node: str


def rank(
    offer: NodeOffer, evict: tuple[Resident, ...], left_bytes: int, usual_speed: float, *, in_vram: bool
) -> Rank:
    """`usual_speed` is what a node counts as that was not measured. 0: none was."""
    drops = bool(offer.copied_from) and offer.dropped_bytes > 0
    return Rank(
        offer.unreached,
        max(offer.unwished, 0) if evict or drops else offer.unwished,
        offer.spreads
        and (offer.beside or bool(evict) or drops or far_slower(offer.tokens_per_s, usual_speed)),
        0 if offer.has_file else 1 if offer.copied_from else 2 if offer.may_have_file else 0,
        drops,
        len(evict),
        max((one.last_used.timestamp() for one in evict), default=0.0),
        not offer.has_backend,
        not in_vram,
        -speed_class(offer.tokens_per_s or usual_speed, offer.busy) if usual_speed else 0,
        offer.busy,
        -left_bytes,
        offer.node,
    )


def far_slower(tokens_per_s: float, usual: float) -> bool:
    """By an order of magnitude. One that was not measured is not."""
    return 0 < tokens_per_s * _FAR <= usual


def usual_speed(speeds: Iterable[float]) -> float:
    """The median of the nodes that were measured; 0: none was. Also of those that do not fit: what is usual
    does not change with what is free."""
    measured = list(filter(None, speeds))
    return median(measured) if measured else 0.0


_FAR: Final = 10

_BEHIND: Final[Mapping[str, str]] = {
    "unreached": "requests from this frontend do not reach it",
    "unwished": "the request would rather have it elsewhere",
    "drops_files": "files of other models would have to go there first",
    "evicted_last_used": "what would have to be unloaded there was used more recently",
    "without_backend": "it would have to install the backend first",
    "in_ram": "the model would run on the CPU there",
    "fullness": "less memory would be left there",
    "node": "it would do as well; of equals one is taken",
}


def why_behind(best: tuple[Rank, NodeOffer], other: tuple[Rank, NodeOffer]) -> str:
    """What decided, for a node that fits and was not chosen."""
    (ranked, chosen), (behind, offer) = best, other
    pairs = zip(Rank._fields, ranked, behind, strict=True)
    decided = next((name for name, one, another in pairs if one != another), "node")
    match decided:
        case "crowded" if offer.beside:
            return "a replica of the model is there already"
        case "crowded" if not behind.evictions:
            return "it is far slower" if not behind.drops_files else _BEHIND["drops_files"]
        case "without_files":
            if offer.copied_from:
                return "the files would have to be copied there"
            return "it is not known whether it has the files"
        case "evictions" | "crowded":
            count = behind.evictions
            return f"{count} replica{'' if count == 1 else 's'} would have to be unloaded there"
        case "slowness" if offer.tokens_per_s and chosen.tokens_per_s:
            there, here = f"{offer.tokens_per_s:.1f}", f"{chosen.tokens_per_s:.1f}"
            return f"it is slower or busier ({there} tokens/s against {here}, {_requests(offer.busy)} there)"
        case "slowness":
            return f"it is slower or busier ({_requests(offer.busy)} there)"
        case "busy":
            return f"it is busier ({_requests(offer.busy)} there)"
        case _:
            return _BEHIND[decided]


def _requests(count: int) -> str:
    return "no requests" if not count else f"{count} request{'' if count == 1 else 's'}"
