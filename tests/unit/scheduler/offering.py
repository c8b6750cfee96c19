"""Needs, offers and residents with defaults: a test names only what it is about."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from remuda.core.ids import NodeId, ReplicaKey
from remuda.scheduler.model import HoldReason, Need, NodeOffer, Resident
from tests.support.nodes import NOON

GB = 1 << 30


def a_need(gb: float = 6.2, **changes: Any) -> Need:
    return replace(Need("qwen", "llama-cpp", "abc", memory_bytes=int(gb * GB), file="qwen.gguf"), **changes)


def an_offer(name: str = "gpu-1", *residents: Resident, free_gb: float = 24, **changes: Any) -> NodeOffer:
    """A node with a GPU of 24 GiB that has backend and file."""
    offer = NodeOffer(
        NodeId(f"id-{name}"),
        name,
        has_backend=True,
        has_file=True,
        vram_total=24 * GB,
        vram_free=int(free_gb * GB),
        residents=residents,
    )
    return replace(offer, **changes)


def a_cpu_offer(name: str = "cpu-1", *residents: Resident, free_gb: float = 24, **changes: Any) -> NodeOffer:
    in_ram = {"vram_total": 0, "vram_free": 0, "ram_total": 24 * GB, "ram_free": int(free_gb * GB)}
    return an_offer(name, *(replace(one, in_vram=False) for one in residents), **(in_ram | changes))


def a_resident(
    model: str,
    gb: float = 5,
    *,
    idle_s: float = 60,
    movable: bool = True,
    hold: HoldReason = HoldReason.BUSY,
) -> Resident:
    """`hold`: of one that is not movable."""
    used = NOON - timedelta(seconds=idle_s)
    why = None if movable else hold
    return Resident(ReplicaKey(model, 0), int(gb * GB), True, movable, last_used=used, hold=why)
