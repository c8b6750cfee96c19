"""What replicas were seen to take of a machine's memories, by their workers' reports, and what the next one
of the same kind will take. Pure.

What is measured counts more than what a file's header lets one expect: drivers and engines take what no
header tells.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from remuda.core.ids import NodeId
from remuda.fleet.model import Node
from remuda.fleet.verdicts import ObservedNode, installed
from remuda.models.memory import MemoryUse
from remuda.scheduler.model import Replica, ReplicaState
from remuda.wire.nodes import Report

READY: Final = "ready"
SETTLED_AFTER: Final = timedelta(minutes=1)
_GROWN: Final = 1.02  # Less than this is no news.


class MemoryKey(NamedTuple):
    """Of what kind a replica is: another of the same kind takes as much."""

    model: str
    revision: str
    build: str  # Of its backend: a digest, or a version.
    hardware: str  # The GPU that it is in; empty: it is in RAM.


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    key: MemoryKey
    use: MemoryUse


class MemoryStore(Protocol):
    async def measured(self) -> Sequence[MeasuredMemory]:
        """What is kept of models that are still configured."""
        ...

    async def keep(self, measured: Sequence[MeasuredMemory]) -> None:
        """The most that was ever seen stays."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryBook:
    """Everything that was measured."""

    uses: Mapping[MemoryKey, MemoryUse] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, key: MemoryKey) -> MemoryUse | None:
        """What a replica of this kind takes; the most that one of the same model takes with another build or
        GPU, where only that is known."""
        if key in self.uses:
            return self.uses[key]
        return most(use for other, use in self.uses.items() if _is_like(other, key))

    def of_model(self, model: str, revision: str) -> "MemoryBook":
        """That part, for many questions about one model: each looks at all that is known."""
        return MemoryBook({key: use for key, use in self.uses.items() if key[:2] == (model, revision)})

    def news(self, seen: Iterable[MeasuredMemory]) -> list[MeasuredMemory]:
        """Of this, what is worth keeping."""
        return [one for one in seen if _has_grown(self.uses.get(one.key), one.use)]


def _is_like(other: MemoryKey, key: MemoryKey) -> bool:
    return other[:2] == key[:2] and bool(other.hardware) == bool(key.hardware)


def _has_grown(known: MemoryUse | None, use: MemoryUse) -> bool:
    return known is None or any(now > before * _GROWN for now, before in zip(use, known, strict=True))


def most(uses: Iterable[MemoryUse]) -> MemoryUse | None:
    """Of each memory, the most that one of them takes; None: there are none."""
    found = list(uses)
    if not found:
        return None
    return MemoryUse(max(one.vram_bytes for one in found), max(one.ram_bytes for one in found))


def kind_of(replica: Replica, view: ObservedNode) -> MemoryKey:
    hardware = hardware_of(view.standing.node) if replica.in_vram else ""
    return MemoryKey(replica.key.model, replica.revision, build_of(view, replica.backend), hardware)


def hardware_of(node: Node) -> str:
    return f"{node.resources.gpu_vendor} {node.resources.gpu_compute_capability}".strip() or "GPU"


def build_of(view: ObservedNode, backend: str) -> str:
    """Of the backend that this node has under the name; empty: it is not known."""
    named = [one for one in installed(view) or () if backend in (one.name, one.alias)]
    return next((one.platform_digest or one.digest or one.version for one in named), "")


def reported_use(replica: Replica, report: Report | None) -> MemoryUse | None:
    """What its worker says that this very process takes. None: it says nothing that counts, as of a replica
    in VRAM whose use of it is not reported."""
    if report is None or not replica.instance or replica.state is not ReplicaState.LOADED:
        return None
    for one in report.replicas:
        if one.instance == replica.instance and one.state == READY:
            told = one.vram_bytes if replica.in_vram else one.ram_bytes
            return MemoryUse(one.vram_bytes, one.ram_bytes) if told else None
    return None


def has_settled(replica: Replica, now: datetime) -> bool:
    """Whether what is measured of it can be shown for what it takes: RAM fills for a while after a load."""
    loaded_at = replica.updated_at
    return replica.in_vram or (loaded_at is not None and now - loaded_at >= SETTLED_AFTER)


def of_kinds(seen: Mapping[Replica, MemoryUse], views: Mapping[NodeId, ObservedNode]) -> list[MeasuredMemory]:
    """Of these replicas on these nodes, the most of each kind."""
    found: dict[MemoryKey, MemoryUse] = {}
    for row, use in seen.items():
        key = kind_of(row, views[row.node])
        found[key] = most((use, found.get(key, use))) or use
    return [MeasuredMemory(key, use) for key, use in found.items()]
