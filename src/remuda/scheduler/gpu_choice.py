"""On which GPUs of a node a model could go: one, or, if its engine divides it, as few as have room. Pure.

Each choice is looked at as if the node had nothing but these GPUs, so that all other rules stay the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from remuda.models.memory import GPU_PROCESS_BYTES
from remuda.scheduler.model import GpuOffer, Need, NodeOffer, Resident

GpuNumbers = tuple[int, ...]


def choices(need: Need, offer: NodeOffer) -> list[list[GpuNumbers]]:
    """By how many GPUs they take; the few come first. Empty: there is nothing to choose."""
    if not offer.gpus or need.on_cpu or need.chooses_gpus or offer.on_cpu:
        return []
    single: list[GpuNumbers] = [(gpu.index,) for gpu in offer.gpus]
    return [single, *([one] for one in _several(offer.gpus))] if need.splits else [single]


def _several(gpus: Sequence[GpuOffer]) -> Iterator[GpuNumbers]:
    """Of each number the ones with most room."""
    roomy = sorted(gpus, key=lambda gpu: (-gpu.free, gpu.index))
    for count in range(2, len(roomy) + 1):
        yield tuple(sorted(gpu.index for gpu in roomy[:count]))


def restricted(offer: NodeOffer, choice: GpuNumbers) -> NodeOffer:
    """The node as it would be with these GPUs alone. Each but the first costs a driver's context more."""
    chosen = [gpu for gpu in offer.gpus if gpu.index in choice]
    extra = (len(chosen) - 1) * GPU_PROCESS_BYTES
    residents = (_part(one, choice) for one in offer.residents)
    return replace(
        offer,
        vram_total=min(sum(gpu.total for gpu in chosen) - extra, offer.vram_total),
        vram_free=min(sum(gpu.free for gpu in chosen) - extra, offer.vram_free),
        residents=tuple(one for one in residents if one is not None),
        gpus=(),
    )


def _part(resident: Resident, choice: GpuNumbers) -> Resident | None:
    """What its going would free there. One of which it is not known where it is may be anywhere: it counts as
    being elsewhere, for nothing can be expected of it. None: it stands in the way of none."""
    if not resident.in_vram:
        return resident
    on = set(resident.gpus) & set(choice)
    if not on:
        return resident if resident.excludes else None
    return replace(resident, memory_bytes=resident.memory_bytes * len(on) // len(resident.gpus))
