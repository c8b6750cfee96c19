"""Replicas, where they are reached, what is known when one is to be placed, and loads and unloads as
operations. Data only."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from remuda.core.ids import BootId, FrontendId, NodeId, ReplicaKey
from remuda.fleet.identity import NodeTokens
from remuda.fleet.model import Node
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import CONTEXT_FALLBACK
from remuda.models.files import Manifest
from remuda.models.gguf import ModelFacts
from remuda.models.memory import NO_MEMORY, MemoryUse
from remuda.ops.model import Goal, Kind, Operation, OpId, ReplicaTarget, RollOut, Source, Step, UnloadReason
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.wire.nodes import CutOffFile, Report

LATER: Final = "; try again later"  # Ends reasons that pass by themselves; nothing to tell those who wait.
REASONS_MAX: Final = 3  # In one sentence.
_NAMED_MAX: Final = 8  # Nodes that have the same reason, out of many.


class ReplicaState(StrEnum):
    """In the contract's words. `staging` and `loading` are on their way, `unloading` on its way out."""

    STAGING = "staging"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as it is stored: written by its loader, and true only while `boot` and `instance` are
    those of a process that lives."""

    key: ReplicaKey
    node: NodeId
    state: ReplicaState
    op: OpId  # The operation that loads it.
    backend: str
    revision: str  # Of the configuration it is made from.
    memory_bytes: int = 0  # What was set aside for it; 0: not known.
    in_vram: bool = False
    ram_beside_bytes: int = 0  # In RAM, of one that is in VRAM.
    parallel: int = 0  # How many requests it takes at once; 0: not known.
    gpus: tuple[int, ...] = ()  # That it is given, of several; empty: all, or the only one.
    concurrency_groups: tuple[str, ...] = ()  # Of its model when it was placed.
    address: str = ""
    protocol: str = ""
    path: str = ""
    instance: str = ""  # Of its process; empty for a peer that tells none.
    boot: BootId | None = None  # The worker's life in which it was loaded.
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_used: datetime | None = None
    why: UnloadReason | None = None  # While it is unloading.
    change: int = 0  # Of the last write; a frontend that has seen it knows this state.


ADDED: Final = "added"
_FILE: Final = "file"


def file_origin(frontend: str, host: str, file: str) -> str:
    """Where a model comes from that a file in a frontend's folder describes."""
    return f"{_FILE}:{frontend}@{host}:{file}" if host else f"{_FILE}:{frontend}:{file}"


@dataclass(frozen=True, slots=True)
class SeenFacts:
    """What a model's file says of itself, as a frontend that has it wrote it down for those that do not: what
    a model needs is the same whichever of them computes it."""

    file: str  # The file or folder that the configuration named then.
    by: str  # The frontend, which alone writes it down again when its file changes.
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A configured model, as every frontend sees it."""

    name: str
    text: str  # Its YAML, as it was given.
    revision: str
    origin: str  # Who brought it: `added`, or the file it was read from.
    updated_at: datetime | None = None
    manifest: Manifest | None = None  # Of a model whose files the fleet has brought; None: people did.
    kept_by: FrontendId | None = None  # The frontend that fetched them.
    terms: SchedulingTerms | None = None  # What an admin has declared beside it, where it was read with it.
    seen: SeenFacts | None = None

    @property
    def file(self) -> str:
        """The file that describes it, in its frontend's folder of models; empty if it was added."""
        kind, _, where = self.origin.partition(":")
        return where.partition(":")[2] if kind == _FILE else ""

    @property
    def frontend(self) -> str:
        """Whose folder that is."""
        return self._place[0] if self.file else ""

    @property
    def host(self) -> str:
        """The machine of that frontend; empty: an earlier release did not say."""
        return self._place[2] if self.file else ""

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.origin.split(":")[1].partition("@")

    @property
    def etag(self) -> str:
        """Of its text: a change says which text it was made to."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Renaming:
    """A model gets another name, and with it all that goes by the old one, at once or not at all."""

    before: StoredModel
    after: StoredModel
    others: tuple[tuple[StoredModel, StoredModel], ...] = ()  # Its aliases, before and after.
    kept: StoredModel | None = None  # The old name as an alias.


@dataclass(frozen=True, slots=True)
class Replicas:
    """All replicas at one instant of the store's clock, and the number of the last change to any."""

    now: datetime
    change: int
    rows: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """What a model asks of a node."""

    model: str
    backend: str
    revision: str
    weights_bytes: int = 0  # On disk; 0: not known.
    memory_bytes: int = 0  # Once loaded into RAM, context included; 0: not known.
    on_gpu: MemoryUse = NO_MEMORY  # Once loaded with a GPU; 0: as in RAM.
    file: str = ""  # Below the models folder; empty: the backend finds its model by itself.
    selector: Mapping[str, str] = field(default_factory=dict)
    parallel: int = 0
    on_cpu: bool = False  # No layer of it is to be in a GPU, whatever the build could do.
    splits: bool = False  # Its engine divides it among the GPUs it sees.
    chooses_gpus: bool = False  # Its configuration says itself which GPUs have what.

    def use(self, *, in_vram: bool) -> MemoryUse:
        """What it is expected to take; 0: not known."""
        if not in_vram:
            return MemoryUse(0, self.memory_bytes)
        return self.on_gpu if self.on_gpu.vram_bytes else MemoryUse(self.memory_bytes, 0)


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """One of several GPUs with memories of their own."""

    index: int
    total: int
    free: int  # Less what was set aside; may be negative.
    used: int = 0  # By replicas that are on record there.


class HoldReason(StrEnum):
    """Why a replica does not leave for another now; the last three do not leave by waiting."""

    BUSY = "busy"
    NEW = "new"  # Those for whom it was loaded are about to use it.
    COMING = "coming"
    LEAVING = "leaving"
    PINNED = "pinned"
    KEPT = "kept"  # Its model is to have as many.
    SAME = "same"  # It is one of the very model that is to be loaded.


STAYS: Final = frozenset({HoldReason.PINNED, HoldReason.KEPT, HoldReason.SAME})


@dataclass(slots=True)  # As NodeOffer.
class Resident:
    """A replica on a node, as placement sees it. `hold`: why it does not leave now, if it is not movable."""

    key: ReplicaKey
    memory_bytes: int
    in_vram: bool
    movable: bool  # It may go to make room (see eviction).
    last_used: datetime
    ram_beside_bytes: int = 0  # In RAM, of one that is in VRAM.
    gpus: tuple[int, ...] = ()  # That it uses, of several; empty: not known.
    excludes: bool = False  # It shares a concurrency group with the model, which is not loaded beside it.
    hold: HoldReason | None = None


class FilesTold(StrEnum):
    """How far it is known which files of models a node has."""

    ALL = "all"
    SOME = "some"  # There are too many for a report.
    CANNOT_FETCH = "cannot fetch"  # All, and its worker is too old to fetch what it lacks.
    NOT_YET = "not yet"
    NEVER = "never"  # Its worker sends no reports.


@dataclass(slots=True)  # Not frozen, which would take as long again: a thousand are made for a decision.
class NodeOffer:
    """What a node has to offer. `unfit` says why it cannot be considered at all; empty: it can. `passing`:
    that is only for the moment. `on_cpu` and `builtin` are about the build that it has or would get."""

    node: NodeId
    name: str
    unfit: str = ""
    passing: bool = False
    approved: bool = True  # Else its name is whatever a stranger chose.
    unreached: bool = False  # Its HTTP port does not answer us; its backends may.
    has_backend: bool = False
    on_cpu: bool = False  # That build uses no GPU.
    builtin: bool = False  # It ships with Remuda: installing it fills no disk.
    has_file: bool = False
    may_have_file: bool = False  # Not known: its backend is to look for it.
    files_told: FilesTold = FilesTold.ALL
    models_path: str = ""  # Its models folder; empty: not known.
    cut_off: CutOffFile | None = None  # A part of the file is there, but not to its end.
    copied_bytes: int = 0  # Files of the model that would be copied there first,
    copied_from: str = ""  # and from whom; empty: none would be.
    no_room: str = ""  # Why its disk has no room for these, whatever may go there; empty: it has.
    dropped_bytes: int = 0  # Of other models' files that go for them.
    differs: str = ""  # Why a file there cannot be the model's.
    labels: Mapping[str, str] = field(default_factory=dict)
    slots: int = 1  # Replicas it may hold.
    slots_raised_by: str = "--max-replicas-per-model on its worker"
    vram_claimed: str = ""  # Who else uses its GPUs, so that it gives way; empty: none do.
    vram_total: int = 0  # After its budget; 0: it has none.
    # As reported, less what was set aside for replicas that do not use it yet; negative: too much is in use.
    vram_free: int = 0
    vram_used: int = 0  # By all replicas that are on record there, also if their processes have just ended.
    ram_total: int = 0
    ram_free: int = 0
    unified: bool = False  # Its VRAM is its RAM: what one has taken, the other has not.
    disk_known: bool = False  # And it counts.
    disk_free: int = 0
    residents: tuple[Resident, ...] = ()  # Without those that stay however long one waits,
    kept: tuple[Resident, ...] = ()  # which are these.
    excluded_by: tuple[str, ...] = ()  # Models that stay there, and share a concurrency group with this one.
    unwished: int = 0  # -1: the request prefers it; 1: it avoids it.
    beside: bool = False  # It has a replica of the model.
    spreads: bool = False  # Some node has one: the next is to be elsewhere.
    reserved: bool = False  # Models that were waited for longer are to have its room first.
    evicts: bool = True  # Others may go for the model.
    gpus: tuple[GpuOffer, ...] = ()  # Where there are several that a process can be given alone.
    busy: int = 0  # Requests in flight on it.
    # What replicas of the model were seen to take, best on such hardware and with such a build.
    measured_in_vram: MemoryUse | None = None
    measured_in_ram: MemoryUse | None = None
    tokens_per_s: float = 0.0  # That the model, or one like it, was seen to write there; 0: not known.


@dataclass(frozen=True, slots=True)
class Placed:
    node: NodeId
    in_vram: bool
    evict: tuple[ReplicaKey, ...] = ()  # These go first.
    copied: str = ""  # What is copied there first, and from whom; empty: nothing.
    memory: MemoryUse = NO_MEMORY  # To be set aside for it; 0: not known.
    gpus: tuple[int, ...] = ()  # That it is given, of several.


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why not, for every node there is, by name, the nearest to working first. `waiting_helps`: somewhere it
    is only busy. `backend_unknown`: no node has its backend and no gallery knows it, as far as was heard.
    `unapproved`: the nodes among them that wait for approval."""

    reasons: Mapping[str, str]
    waiting_helps: bool = False
    backend_unknown: bool = False
    unapproved: frozenset[str] = frozenset()
    room_on: frozenset[NodeId] = frozenset()  # Nodes that are only busy.
    until: str = ""  # Where it could be placed once what has happened by itself; empty: nowhere.

    def told(self, leaving_out: Collection[str] = (), most: int | None = None) -> list[str]:
        """`a, b: why` for the nodes that have the same reason. Of more than `most` reasons, the rest is
        counted."""
        nodes = defaultdict[str, list[str]](list)
        for node, why in self.reasons.items():
            if node not in leaving_out:
                nodes[why].append(node)
        groups = list(nodes.items())
        told = [f"{_named(names)}: {why}" for why, names in groups[:most]]
        rest = 0 if most is None else sum(len(names) for _, names in groups[most:])
        return [*told, f"and {rest} more node{'' if rest == 1 else 's'}"] if rest else told


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMED_MAX
    return f"{', '.join(nodes[:_NAMED_MAX])} and {more} more" if more > 0 else ", ".join(nodes)


@dataclass(frozen=True, slots=True)
class NodeFit:
    """What one node has, and whether a model could be placed there."""

    offer: NodeOffer
    placed: Placed | Unplaceable

    @property
    def why_not(self) -> str:
        """Empty: it fits."""
        return self.placed.reasons.get(self.offer.name, "") if isinstance(self.placed, Unplaceable) else ""


@dataclass(frozen=True, slots=True)
class ModelFit:
    """What a model asks of a node, and how each node stands to that."""

    need: Need
    nodes: tuple[NodeFit, ...]


HTTP = "http"


def endpoint_of(replica: Replica, node: Node, tokens: NodeTokens) -> ReplicaEndpoint:
    """A worker that names no address means the one it registered. The token is the node's own."""
    own = tokens.of(node)
    return ReplicaEndpoint(
        address=replica.address or node.address,
        protocol=replica.protocol,
        path=replica.path,
        token=own.http if replica.protocol == HTTP else own.grpc,
    )


def worker_endpoint(node: Node, tokens: NodeTokens) -> ReplicaEndpoint | None:
    """The node's HTTP server; None where it has given no address of one."""
    if not node.http_address:
        return None
    return ReplicaEndpoint(node.http_address, HTTP, token=tokens.of(node).http)


def why_stopped(replica: Replica, report: Report | None) -> str:
    """What ended its process, if its worker reports that a change of its backend did; else empty."""
    if report is None or not replica.instance:
        return ""
    same = (one for one in report.stopped if one.instance == replica.instance)
    return next((one.why for one in same if replica.key == (one.model_id, one.replica_index)), "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model's files are on the node that loads it, and what follows from them and from the node."""

    models_path: str = ""  # The folder of models there; empty: not known, so none can be named.
    model_file: str = ""  # The model's own file or folder; empty: the backend finds it by itself.
    context: int = CONTEXT_FALLBACK  # Tokens, where the file has been looked at.
    threads: int = 0  # For a model that names none; 0: its worker's backend knows better.


_BEGIN_WITHIN: Final = timedelta(minutes=1)  # Callers do not wait for a load for ever.


def load_operation(
    op: OpId, target: ReplicaTarget, source: Source, node: NodeId, node_name: str, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    """`source` says which backend, and where the node gets it from."""
    return _operation(Kind.LOAD, op, target, source, node, node_name, by, now, now + _BEGIN_WITHIN)


def unload_operation(
    op: OpId, target: ReplicaTarget, source: Source, node: NodeId, node_name: str, *, by: str, now: datetime
) -> tuple[Operation, Step]:
    return _operation(Kind.UNLOAD, op, target, source, node, node_name, by, now, None)


def target_of(step: Step) -> ReplicaTarget:
    assert step.target is not None, "every load and unload is about a replica"
    return step.target


def _operation(
    kind: Kind,
    op: OpId,
    target: ReplicaTarget,
    source: Source,
    node: NodeId,
    node_name: str,
    by: str,
    now: datetime,
    expires: datetime | None,
) -> tuple[Operation, Step]:
    # Not a backend's name: what is done to backends goes its own way.
    goal = Goal((f"replica {target.key}",))
    operation = Operation(
        op, kind, source, RollOut(1), by, now, expires=expires, selection=node_name, target=target
    )
    return operation, Step(op, node, node_name, kind, source, goal, expires=expires, target=target)
