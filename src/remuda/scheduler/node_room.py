"""Whether nodes have more room than when a replica was refused. Pure.

A refusal names what was in the way then. What is said here of each node only grows where something of that is
gone: a replica has left, or may leave now, its process takes less, other programs do, files have come, or the
node can be reached again. Where nothing has grown, the same replica would be refused again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode, why_no_replicas, why_no_vram
from remuda.models.config import ModelConfig
from remuda.models.memory import MemoryUse
from remuda.scheduler.eviction import FIRST, may_go, spares, staying
from remuda.scheduler.measured_memory import MemoryBook
from remuda.scheduler.model import Replica, Replicas
from remuda.scheduler.offers import is_shown, use_of

_OF_OTHERS: Final = 32 << 20  # Other programs move what is free all the time: less than this is no news.
_DISK: Final = 256 << 20


class RoomKey(NamedTuple):
    node: NodeId
    what: str
    of: str = ""


RoomLeft = Mapping[RoomKey, int]
"""More is better. What is not there counts as nothing."""


@dataclass(frozen=True, slots=True)
class RoomInputs:
    seen: Replicas
    nodes: Mapping[NodeId, ObservedNode]
    configs: Mapping[str, ModelConfig]
    in_flight: Callable[[ReplicaKey], int] = lambda key: 0


def room(around: RoomInputs) -> RoomLeft:
    """What could be had on each node if all went that may go."""
    on_node = defaultdict[NodeId, list[Replica]](list)
    for row in around.seen.rows:
        on_node[row.node].append(row)
    stays = spares(around.configs, around.seen.rows)
    found: dict[RoomKey, int] = {}
    for node, view in around.nodes.items():
        found |= _of_node(node, view, on_node[node], stays, around)
    return found


def measured_room(model: str, memory: MemoryBook) -> RoomLeft:
    """What replicas of a model were measured to take: less is better."""
    return {
        RoomKey(NodeId(""), kind, str(key)): -size
        for key, use in memory.uses.items()
        if key.model == model
        for kind, size in zip(("VRAM", "RAM"), use, strict=True)
    }


def grew(before: RoomLeft, now: RoomLeft) -> bool:
    return any(now.get(key, 0) > before.get(key, 0) for key in before.keys() | now.keys())


def least(one: RoomLeft, other: RoomLeft) -> RoomLeft:
    """Of two looks, one before and one after a replica was refused."""
    return {key: min(one.get(key, 0), other.get(key, 0)) for key in one.keys() | other.keys()}


def _of_node(
    node: NodeId,
    view: ObservedNode,
    rows: Sequence[Replica],
    stays: Mapping[str, int],
    around: RoomInputs,
) -> dict[RoomKey, int]:
    figures = view.standing.node.resources
    stay = staying(rows, stays)
    found = defaultdict[RoomKey, int](int)
    vram, ram = figures.available_vram, figures.available_ram
    for row in rows:
        use = use_of(row, view.report)
        shown = is_shown(row, view.standing.node)
        if row.key not in stay and may_go(row, around.seen.now, around.in_flight, FIRST):
            vram, ram = (vram + use.vram_bytes, ram + use.ram_bytes) if shown else (vram, ram)
            continue
        vram, ram = (vram, ram) if shown else (vram - use.vram_bytes, ram - use.ram_bytes)
        _take(found, node, row, use)
    found[RoomKey(node, "VRAM left by others")] = vram // _OF_OTHERS
    found[RoomKey(node, "RAM left by others")] = ram // _OF_OTHERS
    found[RoomKey(node, "disk")] = figures.available_disk // _DISK
    found[RoomKey(node, "takes replicas")] = int(_takes_replicas(view))
    found[RoomKey(node, "files")] = 0 if view.report is None else len(view.report.model_files)
    return found


def _take(found: dict[RoomKey, int], node: NodeId, row: Replica, use: MemoryUse) -> None:
    """What does not go keeps its memory, and its place among the replicas of its model."""
    found[RoomKey(node, "VRAM")] -= use.vram_bytes
    found[RoomKey(node, "RAM")] -= use.ram_bytes
    found[RoomKey(node, "held", row.key.model)] -= 1
    for index in row.gpus:
        found[RoomKey(node, "GPU", str(index))] -= use.vram_bytes // len(row.gpus)


def _takes_replicas(view: ObservedNode) -> bool:
    standing = view.standing
    why = why_no_replicas(standing) or standing.stopped or standing.unreached or why_no_vram(view)
    return not why
