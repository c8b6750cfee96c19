"""Where a new replica goes, and what has to go for it; or why it can go nowhere, for every node. Pure.

Of the nodes that fit, one that nothing has to leave comes first, then one that has the backend, then one with
a GPU, then the least busy, and then the one with most room left: models spread over the machines, and an
estimate that was too small hurts fewer neighbours. Big rooms need not be saved: what is idle can leave them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from remuda.scheduler.model import Need, NodeOffer, Placed, Resident, Unplaceable

_INSTALL_DISK_BYTES: Final = 2 << 30  # For a backend whose size nobody knows beforehand.
_SOMETHING: Final = 1  # Bytes: what a need or a resident of unknown size counts as.


@dataclass(frozen=True, slots=True)
class _Fit:
    offer: NodeOffer
    in_vram: bool
    evict: tuple[Resident, ...]
    left_bytes: int

    @property
    def rank(self) -> tuple[int, float, bool, bool, int, int, str]:
        """The smallest is the best. Of evictions, those of what was used longest ago."""
        last_used = max((one.last_used.timestamp() for one in self.evict), default=0.0)
        offer = self.offer
        return (
            len(self.evict),
            last_used,
            not offer.has_backend,
            not self.in_vram,
            offer.busy,
            -self.left_bytes,
            offer.node,
        )


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    waiting_helps: bool = False


def place(need: Need, offers: Sequence[NodeOffer]) -> Placed | Unplaceable:
    """The best node, with the residents that go first; or a reason for each node there is."""
    looked = [(offer, _look(need, offer)) for offer in offers]
    fits = [found for _, found in looked if isinstance(found, _Fit)]
    if fits:
        best = min(fits, key=lambda fit: fit.rank)
        return Placed(best.offer.node, best.in_vram, tuple(one.key for one in best.evict))
    refused = {offer.name: found for offer, found in looked if isinstance(found, _Refusal)}
    return Unplaceable(
        reasons={name: refused[name].why for name in sorted(refused)},
        # The first node may be about to register.
        waiting_helps=not offers or any(refusal.waiting_helps for refusal in refused.values()),
    )


def _look(need: Need, offer: NodeOffer) -> _Fit | _Refusal:
    refusal = _out_of_the_question(need, offer) or _no_slot(need, offer)
    return refusal or _in_memory(need, offer)


def _out_of_the_question(need: Need, offer: NodeOffer) -> _Refusal | None:
    if offer.unfit:
        return _Refusal(offer.unfit, waiting_helps=offer.passing)
    lacking = [f"{key}={value}" for key, value in need.selector.items() if offer.labels.get(key) != value]
    if lacking:
        return _Refusal(f"it has no label {' and no label '.join(sorted(lacking))}, which the model asks for")
    if need.file and not offer.has_file:
        return _Refusal(f"{need.file} is not in its folder of models; put it there")
    if offer.disk_known and not offer.has_backend and offer.disk_free < _INSTALL_DISK_BYTES:
        return _Refusal(
            f"{need.backend} is not installed and needs {_size(_INSTALL_DISK_BYTES)} of disk, "
            f"{_size(offer.disk_free)} are free"
        )
    return None


def _no_slot(need: Need, offer: NodeOffer) -> _Refusal | None:
    held = sum(one.key.model == need.model for one in offer.residents)
    if held < offer.slots:
        return None
    return _Refusal(
        f"it has {held} replicas of {need.model} and may have {offer.slots}; "
        "--max-replicas-per-model on its worker raises that",
        waiting_helps=True,  # Those that are there are about to serve, or about to go.
    )


# Memory.


def _in_memory(need: Need, offer: NodeOffer) -> _Fit | _Refusal:
    """On a node with a GPU the model goes into VRAM, on others into RAM."""
    in_vram = offer.vram_total > 0
    total, free = (offer.vram_total, offer.vram_free) if in_vram else (offer.ram_total, offer.ram_free)
    if not total:  # Of a peer that tells nothing about its memory nothing can be concluded.
        return _Fit(offer, in_vram, (), 0)
    wanted = need.memory_bytes or _SOMETHING
    memory = "VRAM" if in_vram else "RAM"
    if wanted > total:
        return _Refusal(f"needs {_size(wanted)} of {memory}, it may use {_size(total)}")
    there = [one for one in offer.residents if one.in_vram == in_vram]
    evict = _fewest(wanted - free, [one for one in there if one.movable])
    if evict is None:
        return _too_full(wanted, free, there, memory)
    return _Fit(offer, in_vram, evict, min(free + _bytes(evict), total) - wanted)


def _fewest(lacking: int, movable: Sequence[Resident]) -> tuple[Resident, ...] | None:
    """As few as can free so much; of those the ones used longest ago. None: even all free too little."""
    by_size = sorted(movable, key=_freed, reverse=True)
    count = next((n for n in range(len(by_size) + 1) if _bytes(by_size[:n]) >= lacking), None)
    if count is None:
        return None
    chosen: list[Resident] = []
    rest = sorted(movable, key=lambda one: (one.last_used, one.key.model, one.key.index))
    while len(chosen) < count:
        one, *rest = rest
        biggest = sorted(rest, key=_freed, reverse=True)[: count - len(chosen) - 1]
        if _bytes([*chosen, one, *biggest]) >= lacking:
            chosen.append(one)
    return tuple(chosen)


def _freed(resident: Resident) -> int:
    return resident.memory_bytes or _SOMETHING


def _bytes(residents: Sequence[Resident]) -> int:
    return sum(map(_freed, residents))


# Reasons.


def _too_full(wanted: int, free: int, there: Sequence[Resident], memory: str) -> _Refusal:
    idle = [one for one in there if one.movable]
    needs = f"needs {_size(wanted)} of {memory}, {_size(free)} are free"
    if free + _bytes(there) >= wanted:
        return _Refusal(f"{needs} and what else it holds is busy", waiting_helps=True)
    if not idle:
        return _Refusal(f"{needs} and nothing idle can go")
    return _Refusal(f"{needs} and what is idle would free only {_size(_bytes(idle))}")


def _size(size_bytes: int) -> str:
    if size_bytes == _SOMETHING:
        return "some"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 5e7 else f"{size_bytes / 1e6:.0f} MB"
