"""Which of the nodes that fit is the best for a new replica, and by what the others come after it. Pure."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final, NamedTuple

from remuda.scheduler.measured_speed import speed_class
from remuda.scheduler.model import NodeOffer, Resident


class Rank(NamedTuple):
    """The smallest is the best: what stands first counts most."""

    unreached: bool
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
    return Rank(
        offer.unreached,
        0 if offer.has_file else 1 if offer.copied_from else 2 if offer.may_have_file else 0,
        bool(offer.copied_from) and offer.dropped_bytes > 0,
        len(evict),
        max((one.last_used.timestamp() for one in evict), default=0.0),
        not offer.has_backend,
        not in_vram,
        -speed_class(offer.tokens_per_s or usual_speed, offer.busy) if usual_speed else 0,
        offer.busy,
        -left_bytes,
        offer.node,
    )


def usual_speed(speeds: Iterable[float]) -> float:
    """The median of the nodes that were measured; 0: none was. Also of those that do not fit: what is usual
    does not change with what is free."""
    measured = list(filter(None, speeds))
    return median(measured) if measured else 0.0


_BEHIND: Final[Mapping[str, str]] = {
    "unreached": "requests from this frontend do not reach it",
    "drops_files": "files of other models would have to go there first",
    "evicted_last_used": "what would have to be unloaded there was used later",
    "without_backend": "it would have to install the backend first",
    "in_ram": "the model would run there on the processor",
    "fullness": "less memory would be left there",
    "node": "it is as good",
}


def why_behind(best: tuple[Rank, NodeOffer], other: tuple[Rank, NodeOffer]) -> str:
    """What decided, for a node that fits and was not chosen."""
    (ranked, chosen), (behind, offer) = best, other
    pairs = zip(Rank._fields, ranked, behind, strict=True)
    decided = next((name for name, one, another in pairs if one != another), "node")
    match decided:
        case "without_files":
            return "the files would have to be copied there" if offer.copied_from else "it may lack the files"
        case "evictions":
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
