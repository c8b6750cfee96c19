"""Chooses the node for a new replica and what is evicted for it, or says for every node why not. Pure.

Of the nodes that fit, those that answer when dialled come before those that do not. A further replica of a
model goes where none of it is yet, if nothing has to leave there and it is not slower by an order of
magnitude: a node that is lost takes one with it. Then nodes known to have the model's files come before
those that they are copied to, and these before those that may have them. Among them one that nothing has to
leave comes first, then one that has the backend, then one with a GPU, then the one that was seen to be
fastest for what it has to do already, then the least busy, and then the one with most room left: models
spread over the machines, and an estimate that was too small hurts fewer neighbours. Big rooms need not be
saved: what is idle can leave them.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remuda.fleet.model import RESERVED_PREFIX
from remuda.models.memory import GPU_PROCESS_BYTES, MemoryUse
from remuda.scheduler.holding import held, kept, until
from remuda.scheduler.model import (
    LATER,
    STAYS,
    FilesTold,
    GpuOffer,
    Need,
    NodeOffer,
    Placed,
    Resident,
    Unplaceable,
)
from remuda.scheduler.ranking import Rank, rank, usual_speed, why_behind
from remuda.scheduler.refusals import NodeRefusal, RefusedNode, nowhere, refused
from remuda.wire.nodes import CutOffFile

_INSTALL_DISK_BYTES: Final = 2 << 30  # For a backend whose size is not known beforehand.
_GpuNumbers = tuple[int, ...]
_SOMETHING: Final = 1  # Bytes: what a need or a resident of unknown size counts as.


@dataclass(frozen=True, slots=True)
class Fit:
    offer: NodeOffer
    wanted: "_Wanted"
    evict: tuple[Resident, ...]
    left_bytes: int
    gpus: tuple[int, ...] = ()

    def rank(self, usual: float) -> Rank:
        return rank(self.offer, self.evict, self.left_bytes, usual, in_vram=self.wanted.in_vram)

    @property
    def placed(self) -> Placed:
        evict, wanted = tuple(one.key for one in self.evict), self.wanted
        copied = _copied(self.offer)
        return Placed(self.offer.node, wanted.in_vram, evict, copied, wanted.use, self.gpus)


_LACKS_ROOM: Final = 2  # On the disk, or of the file itself: a part of it is there.
_LACKS_FILE: Final = 3
_LACKS_LABEL: Final = 4
_UNFIT: Final = 5


def place(need: Need, offers: Sequence[NodeOffer]) -> Placed | Unplaceable:
    """The best node, with the residents that go first; or a reason for each node there is."""
    looked = [(offer, look(need, offer)) for offer in offers]
    fits = [found for _, found in looked if isinstance(found, Fit)]
    if fits:
        usual = usual_speed(offer.tokens_per_s for offer in offers)
        return min(fits, key=lambda fit: fit.rank(usual)).placed
    return nowhere([refused_by(offer, found) for offer, found in looked if isinstance(found, NodeRefusal)])


def refused_by(offer: NodeOffer, why: NodeRefusal) -> RefusedNode:
    return refused(offer.node, offer.name, why, approved=offer.approved, unfit=bool(offer.unfit))


def not_chosen(need: Need, offers: Sequence[NodeOffer]) -> Mapping[str, str]:
    """Why each node is not where `place` would have it, by name, the next best first."""
    looked = [(offer, look(need, offer)) for offer in offers]
    fits = [found for _, found in looked if isinstance(found, Fit)]
    usual = usual_speed(offer.tokens_per_s for offer in offers)
    ranked = sorted(((fit.rank(usual), fit.offer) for fit in fits), key=lambda one: one[0])
    behind = {offer.name: why_behind(ranked[0], (found, offer)) for found, offer in ranked[1:]}
    refused = {offer.name: found for offer, found in looked if isinstance(found, NodeRefusal)}
    nearest_first = sorted(refused, key=lambda name: (refused[name].rank, name))
    return behind | {name: refused[name].why for name in nearest_first}


def look(need: Need, offer: NodeOffer) -> Fit | NodeRefusal:
    refusal = _out_of_the_question(need, offer) or _no_slot(need, offer) or _excluded(need, offer)
    return refusal or _on_gpus(need, offer)


def _out_of_the_question(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    unlabelled = _no_label(need, offer)
    # A node that is silent for now does not get the label by coming back.
    if offer.unfit and not (offer.passing and unlabelled):
        later = "it is back" if offer.passing else ""
        return NodeRefusal(offer.unfit, waiting_helps=offer.passing, lacks=_UNFIT, until=later)
    if unlabelled:
        return unlabelled
    if need.file and not offer.has_file and offer.cut_off is not None:
        return _incomplete(offer.cut_off)
    if offer.differs and not offer.has_file:
        return NodeRefusal(offer.differs, lacks=_LACKS_ROOM)
    needs_file = need.file or offer.files_told is FilesTold.CANNOT_FETCH
    if needs_file and not offer.has_file and not offer.may_have_file and not offer.copied_from:
        folder = f" {offer.models_path}" if offer.models_path else ""
        file = need.file or f"the files of {need.model}"
        why = _NO_FILE[offer.files_told].format(file=file, folder=folder)
        return NodeRefusal(why, offer.files_told is FilesTold.NOT_YET, _LACKS_FILE)
    return _claimed(need, offer) or _no_disk_for_files(offer) or _no_disk(need, offer)


def _claimed(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    """Its owner wants the GPU for something else, which ends some time."""
    if not offer.vram_claimed or offer.on_cpu or need.on_cpu:
        return None
    later = "its owner no longer uses the GPU"
    return NodeRefusal(offer.vram_claimed, waiting_helps=True, lacks=_LACKS_ROOM, until=later)


def _copied(offer: NodeOffer) -> str:
    return f"{_size(offer.copied_bytes)} from {offer.copied_from}" if offer.copied_from else ""


def _no_disk_for_files(offer: NodeOffer) -> NodeRefusal | None:
    if not offer.copied_from or not offer.no_room:
        return None
    return NodeRefusal(offer.no_room, lacks=_LACKS_ROOM)


def _no_label(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    lacking = sorted(
        f"{key}={value}" for key, value in need.selector.items() if offer.labels.get(key) != value
    )
    if not lacking:
        return None
    # Without the node's name: nodes that lack the same are listed together.
    why = f"no label {' and no label '.join(lacking)}, which the model asks for"
    if not any(label.startswith(RESERVED_PREFIX) for label in lacking):  # Those only the node itself sets.
        why = f"{why}; to set that: remuda nodes label NODE {shlex.join(lacking)}"
    return NodeRefusal(why, lacks=_LACKS_LABEL)


def _no_disk(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    if offer.has_backend or offer.builtin or not offer.disk_known or offer.disk_free >= _INSTALL_DISK_BYTES:
        return None
    takes, free = _sizes(_INSTALL_DISK_BYTES, offer.disk_free)
    return NodeRefusal(
        f"{need.backend} is not installed and may need {takes} of disk, {free} free; make room there, or "
        "switch this check off with --no-distributed-disk-headroom-check",
        lacks=_LACKS_ROOM,
    )


def _no_slot(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    held = sum(one.key.model == need.model for one in offer.residents)
    if held < offer.slots:
        return None
    return NodeRefusal(
        f"it has {held} replica{'' if held == 1 else 's'} of {need.model} and may have {offer.slots}; "
        f"{offer.slots_raised_by} raises that",
        waiting_helps=True,  # Those that are there are about to serve, or about to go.
    )


def _excluded(need: Need, offer: NodeOffer) -> NodeRefusal | None:
    """For as long as others of its concurrency groups cannot go."""
    if offer.excluded_by:
        others = ", ".join(offer.excluded_by)
        return NodeRefusal(f"{others} stays loaded there and shares a concurrency group with {need.model}")
    there = [one for one in offer.residents if one.excludes and not one.movable]
    if not there:
        return None
    shares = "shares" if len({one.key.model for one in there}) == 1 else "share"
    why = f"{held(there)}, and {shares} a concurrency group with {need.model}"
    return NodeRefusal(f"{why}{LATER}", waiting_helps=True, until=until(there))


# Memory.


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a replica would take on one node. `measured`: others like it took so much."""

    use: MemoryUse
    in_vram: bool
    unified: bool
    measured: bool = False
    seen_bytes: int = 0  # What others like it took of RAM so far, where that is less.

    @property
    def size_bytes(self) -> int:
        """Of the memory that its model goes to; 0: not known."""
        return sum(self.use) if self.unified or not self.in_vram else self.use.vram_bytes

    @property
    def beside_bytes(self) -> int:
        """In RAM, of a model that is in VRAM."""
        return self.use.ram_bytes if self.in_vram and not self.unified else 0


def _wanted(need: Need, offer: NodeOffer, *, in_vram: bool) -> _Wanted:
    """RAM fills while a replica works, so what was measured there counts only where it is more. What goes to
    VRAM is taken at the start."""
    expected = need.use(in_vram=in_vram)
    measured = offer.measured_in_vram if in_vram else offer.measured_in_ram
    if measured is None:
        return _Wanted(expected, in_vram, offer.unified)
    ram = max(measured.ram_bytes, expected.ram_bytes)
    use = MemoryUse(measured.vram_bytes if in_vram else 0, ram)
    more = in_vram or ram > expected.ram_bytes
    seen = 0 if more or ram == measured.ram_bytes else measured.ram_bytes
    return _Wanted(use, in_vram, offer.unified, measured=more, seen_bytes=seen)


def _on_gpus(need: Need, offer: NodeOffer) -> Fit | NodeRefusal:
    """On as few GPUs as possible; of single ones, where least has to go and most room is left."""
    refusal: NodeRefusal | None = None
    for tier in _choices(need, offer):
        looked = [(choice, _in_memory(need, _restricted(offer, choice))) for choice in tier]
        fits = [replace(found, offer=offer, gpus=on) for on, found in looked if isinstance(found, Fit)]
        if fits:
            return min(fits, key=lambda fit: (len(fit.evict), -fit.left_bytes, fit.gpus))
        refused = [found for _, found in looked if isinstance(found, NodeRefusal)]
        refusal = min((*filter(None, [refusal]), *refused), key=lambda one: one.rank)
    return refusal or _in_memory(need, offer)


def _choices(need: Need, offer: NodeOffer) -> list[list[_GpuNumbers]]:
    """On which GPUs it could go: one, or several if its engine divides it. By how many; the few come first.
    Empty: there is nothing to choose."""
    if not offer.gpus or need.on_cpu or need.chooses_gpus or offer.on_cpu:
        return []
    single: list[_GpuNumbers] = [(gpu.index,) for gpu in offer.gpus]
    return [single, *([one] for one in _several(offer.gpus))] if need.splits else [single]


def _several(gpus: Sequence[GpuOffer]) -> Iterator[_GpuNumbers]:
    """Of each number the ones with most room."""
    roomy = sorted(gpus, key=lambda gpu: (-gpu.free, gpu.index))
    for count in range(2, len(roomy) + 1):
        yield tuple(sorted(gpu.index for gpu in roomy[:count]))


def _restricted(offer: NodeOffer, choice: _GpuNumbers) -> NodeOffer:
    """The node as if it had no other GPUs, so that all other rules stay the same. Each but the first costs a
    driver's context more."""
    chosen = [gpu for gpu in offer.gpus if gpu.index in choice]
    extra = (len(chosen) - 1) * GPU_PROCESS_BYTES
    residents = (_part(one, choice) for one in offer.residents)
    return replace(
        offer,
        vram_total=min(sum(gpu.total for gpu in chosen) - extra, offer.vram_total),
        vram_free=min(sum(gpu.free for gpu in chosen) - extra, offer.vram_free),
        vram_used=sum(gpu.used for gpu in chosen),
        residents=tuple(one for one in residents if one is not None),
        kept=tuple(one for one in (_part(one, choice) for one in offer.kept) if one is not None),
        gpus=(),
    )


def _part(resident: Resident, choice: _GpuNumbers) -> Resident | None:
    """What its going would free there. One of which it is not known where it is may be anywhere: it counts as
    being elsewhere, for nothing can be expected of it. None: it stands in the way of none."""
    if not resident.in_vram:
        return resident
    on = set(resident.gpus) & set(choice)
    if not on:
        return resident if resident.excludes else None
    return replace(resident, memory_bytes=resident.memory_bytes * len(on) // len(resident.gpus))


def _in_memory(need: Need, offer: NodeOffer) -> Fit | NodeRefusal:
    """In VRAM, all of it, unless there is none, or the build or the model's configuration leaves it alone."""
    in_vram = offer.vram_total > 0 and not offer.on_cpu and not need.on_cpu
    wanted = _wanted(need, offer, in_vram=in_vram)
    total, free = (offer.vram_total, offer.vram_free) if in_vram else (offer.ram_total, offer.ram_free)
    excluded = tuple(one for one in offer.residents if one.excludes)
    if not total:  # Of a peer that tells nothing about its memory nothing can be concluded.
        return Fit(offer, wanted, excluded, 0)
    size = wanted.size_bytes or _SOMETHING
    if size > total:
        return _too_large(need, offer, wanted, total)
    there = [one for one in offer.residents if _in_the_way(one, offer, in_vram=in_vram)]
    freed = sum(_freed(one) for one in excluded if one in there)
    base = free if size <= free and not freed else _once_others_go(offer, free, in_vram=in_vram)
    fewest = _fewest(size - base - freed, [one for one in there if one.movable and not one.excludes])
    if fewest is None:
        stay = [one for one in offer.kept if _in_the_way(one, offer, in_vram=in_vram)]
        leaving = [one for one in there if one.hold not in STAYS]
        return _too_full(need, offer, wanted, (free, base), _There(leaving, stay))
    evict = (*excluded, *fewest)
    return _no_ram_beside(offer, wanted, evict) or Fit(
        offer, wanted, evict, min(base + freed + _bytes(fewest), total) - size
    )


def _once_others_go(offer: NodeOffer, free: int, *, in_vram: bool) -> int:
    """What is free, to which is added what others leave. A replica whose process has just crashed is still on
    record, and its memory is in what is reported as free already: it is not counted twice. RAM never is (see
    offers)."""
    return min(free, offer.vram_total - offer.vram_used) if in_vram else free


def _no_ram_beside(offer: NodeOffer, wanted: _Wanted, evict: Sequence[Resident]) -> NodeRefusal | None:
    """For the layers that stay there. What needs nothing lacks nothing, also where too much is in use."""
    free = offer.ram_free + sum(one.ram_beside_bytes for one in evict)
    if not offer.ram_total or not wanted.beside_bytes or wanted.beside_bytes <= free:
        return None
    needs, has = _sizes(wanted.beside_bytes, max(free, 0))
    return NodeRefusal(f"needs {needs} of RAM beside its VRAM, {has} free; unload or stop something there")


def _in_the_way(resident: Resident, offer: NodeOffer, *, in_vram: bool) -> bool:
    """It uses the memory in question. Leaving RAM gives nothing back to a budget for VRAM."""
    budget = in_vram and offer.vram_total < offer.ram_total
    return resident.in_vram == in_vram or (offer.unified and not budget)


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

_NO_FILE: Final[Mapping[FilesTold, str]] = {
    FilesTold.ALL: "{file} was not in its models folder{folder} at its last report; put it there",
    FilesTold.SOME: "{file} is not among the files that its worker reports, which are not all it has; put it "
    "there with fewer others beside it",
    FilesTold.CANNOT_FETCH: "it does not have {file}, and its worker is of a release that fetches no model "
    "files; update its worker, or put them into its models folder{folder}",
    FilesTold.NOT_YET: "its worker has not reported yet whether it has {file}; wait for its next report",
    FilesTold.NEVER: "its worker does not report whether it has {file}; share one models folder with it and "
    "start frontends with --distributed-shared-models",
}


def _incomplete(file: CutOffFile) -> NodeRefusal:
    # Where even the header is incomplete, how much is to come is not known.
    whole = f" of {_size(file.size + file.missing)} or more" if file.missing > 1 else ""
    return NodeRefusal(
        f"{file.path} is incomplete there ({_size(file.size)}{whole}); wait if it is being copied, or else "
        "copy it again",
        lacks=_LACKS_ROOM,
    )


def _too_large(need: Need, offer: NodeOffer, wanted: _Wanted, total: int) -> NodeRefusal:
    needs, available = _set_against(wanted, total)
    return NodeRefusal(f"{needs}, {available} available; {_what_helps(need, offer, wanted)}")


@dataclass(frozen=True, slots=True)
class _There:
    """In the memory in question; `kept` does not leave by waiting."""

    leaving: Sequence[Resident]
    kept: Sequence[Resident]


def _too_full(
    need: Need, offer: NodeOffer, wanted: _Wanted, room: tuple[int, int], there: _There
) -> NodeRefusal:
    """`room`: what is free, and what of it counts once others go."""
    free, base = room
    idle = [one for one in there.leaving if one.movable]
    needs, free_there = _set_against(wanted, max(free, 0))
    lacks = f"{needs}, {free_there} free"
    size = wanted.size_bytes or _SOMETHING
    if base + _bytes(there.leaving) >= size:
        return _only_for_now(need, offer, there.leaving, lacks)
    if there.kept and base + _bytes([*there.leaving, *there.kept]) >= size:
        return NodeRefusal(f"{lacks}, and {kept(there.kept)}")
    helps = _what_helps(need, offer, wanted)
    if not idle:
        return NodeRefusal(f"{lacks}, and no idle model could be unloaded; {helps}")
    return NodeRefusal(f"{lacks}, and unloading idle models would free only {_size(_bytes(idle))}; {helps}")


def _only_for_now(need: Need, offer: NodeOffer, there: Sequence[Resident], lacks: str) -> NodeRefusal:
    if not offer.evicts:
        why = f"and nothing is unloaded for one more replica of {need.model}"
        why, later = f"{why}; it is added when there is room", "there is room"
    elif offer.reserved:
        why, later = "and models that have waited longer come first", "those have been loaded"
    else:
        stay = [one for one in there if not one.movable]
        why, later = f"and {held(stay)}{LATER}", until(stay)
    return NodeRefusal(f"{lacks}, {why}", waiting_helps=True, until=later)


def _what_helps(need: Need, offer: NodeOffer, wanted: _Wanted) -> str:
    if not wanted.size_bytes:
        return "unload or stop something there"
    context = " or `context_size`" if _in_gguf(need) else ""
    smaller = f"a smaller quantisation{context} needs less"
    other = _other_memory(need, offer, in_vram=wanted.in_vram)
    return f"{smaller}; {other}" if other else smaller


def _other_memory(need: Need, offer: NodeOffer, *, in_vram: bool) -> str:
    """What would make it use the other kind of memory, if that has room."""
    free = offer.ram_free if in_vram else offer.vram_free
    if not (offer.ram_total if in_vram else offer.vram_total):
        return ""
    if _wanted(need, offer, in_vram=not in_vram).size_bytes > free:
        return ""
    there = f"{_kind(not in_vram)}, of which {_size(free)} is free"
    if in_vram:
        return f"with `gpu_layers: 0` it would use {there}" if _in_gguf(need) else ""
    if need.on_cpu:
        return f"without `gpu_layers: 0` it would use {there}"
    return f"a build of {need.backend} for its GPU would use {there}"


def _in_gguf(need: Need) -> bool:
    return need.file.endswith(".gguf")


def _set_against(wanted: _Wanted, there: int) -> tuple[str, str]:
    kind = _kind(wanted.in_vram)
    if not wanted.size_bytes:
        return f"needs {kind}, how much is not known yet", _size(there)
    needs, has = _sizes(wanted.size_bytes, there)
    seen = ""
    if wanted.measured:
        seen = " (measured)"
    elif wanted.seen_bytes:  # RAM fills with use: see docs/decisions/measured-memory.md.
        seen = f" (expected; {_size(wanted.seen_bytes)} measured so far)"
    return f"needs {needs} of {kind}{seen}", has


def _kind(in_vram: bool) -> str:
    return "VRAM" if in_vram else "RAM"


def _sizes(needed: int, there: int) -> tuple[str, str]:
    """In as few digits as tell them apart."""
    digits = next((count for count in (1, 3) if _size(needed, count) != _size(there, count)), 9)
    return _size(needed, digits), _size(there, digits)


def _size(size_bytes: int, digits: int = 1) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.{digits}f} GiB"
    return f"{size_bytes / (1 << 20):.{digits - 1}f} MiB"
