"""Parts of what is said of one node: its memory, a claim to its name, and by what calls know its worker."""

import hashlib
from typing import Final

from remuda.core.ids import MachineId
from remuda.wire.codec import GO_ZERO_TIME, Message, Timestamp, Uint64


class NodeMemory(Message):
    """What a model could be given there now without another leaving, and what is set aside for those that are
    there."""

    free_vram: Uint64 = 0
    free_ram: Uint64 = 0
    set_aside_vram: Uint64 = 0
    set_aside_ram: Uint64 = 0


class NodeClaim(Message):
    """A machine that wants the name of a node that is gone. Once its id is approved it takes that place."""

    id: str
    source: str = ""  # The IP address it registers from.
    address: str = ""
    http_address: str = ""
    version: str = ""
    since: Timestamp = GO_ZERO_TIME
    last_heard: Timestamp = GO_ZERO_TIME


WORKER_HEADER: Final = "x-remuda-worker"
"""Ours, in what a worker answers to `GET /healthz`: another one may have its port by now."""


def worker_mark(machine: MachineId) -> str:
    """Tells workers apart, and says nothing of the id that they register with. Empty for one without it."""
    return hashlib.sha256(f"worker {machine}".encode()).hexdigest()[:16] if machine else ""
