"""Which model files leave a node to make room for others, or why the room cannot be had. Pure.

Only files that the node's own worker has fetched may go, model by model, the one that was not used longest
first. Nothing goes that a loaded or loading model needs, that belongs to a pinned model, or of which no other
copy is known in the fleet: where that is in doubt, the file stays.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import Node, model_files_ceiling
from remuda.fleet.verdicts import ObservedNode, is_up
from remuda.models.files import NeededFile
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.staging import arrived
from remuda.wire.nodes import ModelFile

_MARGIN_SHARE: Final = 20  # One part in so many stays free where files are copied to,
_MARGIN_BYTES_MIN: Final = 1 << 30  # and at least so much: workers insist on it, too.
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class FileOnNode:
    """A file in a node's folder of models, and who needs it. `keep`: why it may not go; empty: it may."""

    path: str
    size: int
    sha256: str = ""
    brought: bool = True  # By the node's worker.
    used_ms: int = 0
    models: frozenset[str] = frozenset()
    keep: str = ""
    inode: int = 0  # Paths with the same are one file on the disk; 0: its worker does not tell.


@dataclass(frozen=True, slots=True)
class PartOnNode:
    """What has come of a file that has no place in the folder of models yet. `keep` as above."""

    sha256: str
    size: int
    keep: str = ""


@dataclass(frozen=True, slots=True)
class NodeDisk:
    """A node's disk, as far as model files are concerned."""

    node: str
    files: tuple[FileOnNode, ...] = ()
    fetched_bytes: int = 0  # Of files that its worker has fetched.
    budget_bytes: int | None = None  # The most that these may come to.
    free_bytes: int | None = None  # None: not known, or not to be looked at.
    coming_bytes: int = 0  # Of files that other loads are copying there now.
    coming_arrived_bytes: int = 0  # Of these, what is on the disk already.
    parts: tuple[PartOnNode, ...] = ()

    @property
    def idle_parts(self) -> tuple[PartOnNode, ...]:
        return tuple(part for part in self.parts if not part.keep)


@dataclass(frozen=True, slots=True)
class Lack:
    """What has to go. The budget counts what the worker has fetched; the disk, every file there is."""

    of_budget: int = 0
    of_disk: int = 0

    @property
    def most(self) -> int:
        return max(self.of_budget, self.of_disk)


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """What goes of one model. `name` is empty for files that no configured model needs."""

    name: str
    files: tuple[FileOnNode, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def used_ms(self) -> int:
        """A load needs all files of its model, and some are needed by others, too."""
        return min((file.used_ms for file in self.files), default=0)


@dataclass(frozen=True, slots=True)
class DropPlan:
    """There is room once these are gone, the parts first. Of nothing, if there is room already."""

    drop: tuple[ModelOnDisk, ...] = ()
    parts: tuple[PartOnNode, ...] = ()

    @property
    def files(self) -> tuple[FileOnNode, ...]:
        return tuple(file for model in self.drop for file in model.files)


@dataclass(frozen=True, slots=True)
class NoRoom:
    why: str  # With the numbers, and what would help.


def room_for(needed_bytes: int, disk: NodeDisk, arrived_bytes: int = 0) -> DropPlan | NoRoom:
    """For files that are to be copied there. Nothing needs no room. `arrived_bytes` of them are there from an
    earlier load, which ended before it had them all."""
    if needed_bytes <= 0:
        return DropPlan()
    if disk.budget_bytes is not None and needed_bytes > disk.budget_bytes:
        return NoRoom(
            f"the model's files need {_size(needed_bytes)} of disk there, and the budget for model files is "
            f"{_size(disk.budget_bytes)}; {_RAISE_BUDGET}"
        )
    arrived_bytes = min(arrived_bytes, needed_bytes)
    lack = _lacking(needed_bytes, disk, arrived_bytes)
    if not lack.of_disk:
        return freed(lack, disk, needed_bytes, arrived_bytes)
    parts = min(_parts_bytes(disk), lack.of_disk)
    lack = replace(lack, of_disk=lack.of_disk - parts)
    plan = freed(lack, disk, needed_bytes, arrived_bytes, parts_bytes=parts)
    return plan if isinstance(plan, NoRoom) else replace(plan, parts=disk.idle_parts)


def freed_by_hand(lacking_bytes: int, disk: NodeDisk, *, of_budget: bool) -> DropPlan | NoRoom:
    """What no load is copying goes in any case, and first. It takes nothing of a budget."""
    parts = 0 if of_budget else min(_parts_bytes(disk), lacking_bytes)
    plan = freed(Lack(lacking_bytes - parts), disk, parts_bytes=parts)
    return plan if isinstance(plan, NoRoom) else replace(plan, parts=disk.idle_parts)


def freed(
    lack: Lack, disk: NodeDisk, needed_bytes: int = 0, arrived_bytes: int = 0, *, parts_bytes: int = 0
) -> DropPlan | NoRoom:
    """At least so many bytes less than there are now; `needed_bytes` is what they are for. As many models go
    as it takes, the longest unused first; of these, those without which there is room as well stay.
    `parts_bytes` go beside these."""
    chosen: list[ModelOnDisk] = []
    gone: set[str] = set()
    if _is_enough(lack, disk, gone):
        return DropPlan()
    for name, files in _leaving(disk):
        chosen.append(ModelOnDisk(name, files))
        gone |= {file.path for file in files}
        if _is_enough(lack, disk, gone):
            return DropPlan(_without_needless(chosen, lack, disk))
    numbers = _numbers(needed_bytes, lack.most + parts_bytes, arrived_bytes, disk)
    may_go = _freed_bytes(disk, gone, fetched_only=lack.of_budget > 0) + parts_bytes
    return NoRoom(_no_room(numbers, needed_bytes, may_go, disk))


def _parts_bytes(disk: NodeDisk) -> int:
    return sum(part.size for part in disk.idle_parts)


def _is_enough(lack: Lack, disk: NodeDisk, gone: Collection[str]) -> bool:
    return (
        _freed_bytes(disk, gone, fetched_only=True) >= lack.of_budget
        and _freed_bytes(disk, gone, fetched_only=False) >= lack.of_disk
    )


def _without_needless(chosen: Sequence[ModelOnDisk], lack: Lack, disk: NodeDisk) -> tuple[ModelOnDisk, ...]:
    """The last was needed, or there would have been room before it. A model stays with the files that it
    shares, so one of which a later file goes has to go, too."""
    left = list(chosen)
    for one in reversed(chosen[:-1]):
        others = [other for other in left if other is not one]
        shared = any(one.name in file.models for other in others for file in other.files)
        if not shared and _is_enough(lack, disk, {file.path for other in others for file in other.files}):
            left = others
    return tuple(left)


def over_budget_bytes(disk: NodeDisk) -> int:
    if disk.budget_bytes is None:
        return 0
    return max(disk.fetched_bytes + disk.coming_bytes - disk.budget_bytes, 0)


def margin_bytes(needed_bytes: int) -> int:
    return max(needed_bytes // _MARGIN_SHARE, _MARGIN_BYTES_MIN)


def _lacking(needed_bytes: int, disk: NodeDisk, arrived_bytes: int) -> Lack:
    """Files count as fetched once they are whole; what has arrived of others is not free any more."""
    of_disk, missing = 0, needed_bytes - arrived_bytes
    if disk.free_bytes is not None and missing:
        others = disk.coming_bytes - disk.coming_arrived_bytes
        of_disk = max(missing + others + margin_bytes(missing) - disk.free_bytes, 0)
    return Lack(max(_over_budget(needed_bytes, disk), 0), of_disk)


def _leaving(disk: NodeDisk) -> Iterable[tuple[str, tuple[FileOnNode, ...]]]:
    """Models in the order in which they go, with what of each goes then: a file that others need as well goes
    with the last of them."""
    by_model = defaultdict[str, list[FileOnNode]](list)
    orphans: list[FileOnNode] = []
    for file in disk.files:
        for model in file.models:
            by_model[model].append(file)
        if not file.models and not file.keep:
            orphans.append(file)
    units = [(min(file.used_ms for file in files), name, files) for name, files in by_model.items()]
    units += [(file.used_ms, "", [file]) for file in orphans]
    gone: set[str] = set()
    for _, name, files in sorted(
        units, key=lambda unit: (unit[0], unit[1], sorted(one.path for one in unit[2]))
    ):
        if name:
            gone.add(name)
        goes = [file for file in files if not file.keep and file.models <= gone]
        if goes:
            yield name, tuple(sorted(goes, key=lambda file: file.path))


def _freed_bytes(disk: NodeDisk, gone: Collection[str], *, fetched_only: bool) -> int:
    """Of paths that are one file on the disk, as their worker counts them, only the last frees anything."""
    counted = [file for file in disk.files if file.brought or not fetched_only]
    stay = {_file_of(file) for file in counted if file.path not in gone}
    freeing = {_file_of(file): file.size for file in counted if file.path in gone}
    return sum(size for content, size in freeing.items() if content not in stay)


def _file_of(file: FileOnNode) -> int | str:
    """Where the worker does not tell which paths are one file, equal ones may be."""
    return file.inode or file.sha256 or file.path


# Words.

_RAISE_BUDGET: Final = "remuda nodes disk NODE --budget SIZE changes that"


def _no_room(numbers: str, needed_bytes: int, freed_bytes: int, disk: NodeDisk) -> str:
    lines = [numbers]
    over_budget = _over_budget(needed_bytes, disk) > 0
    stay = _what_stays(disk, fetched_only=over_budget)
    if stay:
        lines.append(
            f"removing what may go there would free {_size(freed_bytes)}, and the rest stays: {stay}"
        )
    over_disk = disk.free_bytes is not None and needed_bytes and not over_budget
    helps = "make room there, or unload or unpin a model" if stay else "make room there"
    if over_budget:
        helps = f"unload or unpin a model there, or raise the budget: {_RAISE_BUDGET}"
    elif over_disk:
        helps = f"{helps}, or switch this check off with --no-distributed-disk-headroom-check"
    return "; ".join((*lines, helps))


def _over_budget(needed_bytes: int, disk: NodeDisk) -> int:
    if disk.budget_bytes is None:
        return 0
    return disk.fetched_bytes + disk.coming_bytes + needed_bytes - disk.budget_bytes


def _numbers(needed_bytes: int, lacking_bytes: int, arrived_bytes: int, disk: NodeDisk) -> str:
    if not needed_bytes:
        return f"{_size(lacking_bytes)} were to be freed"
    parts: list[str] = []
    if disk.budget_bytes is not None and _over_budget(needed_bytes, disk) > 0:
        parts.append(
            f"the model's files need {_size(needed_bytes)}, and those fetched before take "
            f"{_size(disk.fetched_bytes)} of the {_size(disk.budget_bytes)} that its budget allows"
        )
    else:
        missing = needed_bytes - arrived_bytes
        margin = margin_bytes(missing)
        what = "what is missing of the model's files needs" if arrived_bytes else "the model's files need"
        parts.append(
            f"{what} {_size(missing)}, and {_size(margin)} of the disk has to stay free; "
            f"{_size(disk.free_bytes or 0)} is free now"
        )
    if disk.coming_bytes:
        parts.append(f"{_size(disk.coming_bytes)} more are being copied there for other models")
    return "; ".join(parts)


def _what_stays(disk: NodeDisk, *, fetched_only: bool) -> str:
    """By reason, the largest first. What its worker did not fetch takes nothing of a budget."""
    stays = defaultdict[str, int](int)
    for file in disk.files:
        if file.keep and (file.brought or not fetched_only):
            stays[file.keep] += file.size
    ordered = sorted(stays.items(), key=lambda one: (-one[1], one[0]))
    named = [f"{_size(size)} ({why})" for why, size in ordered[:_NAMED_MAX]]
    rest = sum(size for _, size in ordered[_NAMED_MAX:])
    return ", ".join((*named, f"{_size(rest)} for other reasons") if rest else named)


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.0f} MiB"


# From what is known of the fleet to one node's disk.


FileCopy = tuple[str, int, str]  # Path, size and SHA-256.


@dataclass(frozen=True, slots=True)
class FilesInFleet:
    """`users` are the configured models that need a path, `here` what frontends and object storage have of
    their files (with an empty SHA-256 where that is not known), `holders` the nodes that are up and have one,
    and `keepers` those of them whose workers did not fetch it, so that it does not go there to make room.
    `checks_disk`: free disk counts."""

    models: Mapping[str, Sequence[NeededFile]] = field(default_factory=dict)
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    here: frozenset[FileCopy] = frozenset()
    holders: Mapping[FileCopy, Collection[NodeId]] = field(default_factory=dict)
    keepers: Mapping[FileCopy, Collection[NodeId]] = field(default_factory=dict)
    rows: Sequence[Replica] = ()
    pinned: frozenset[str] = frozenset()
    checks_disk: bool = True


def files_in_fleet(
    models: Mapping[str, Sequence[NeededFile]],
    nodes: Sequence[ObservedNode],
    rows: Sequence[Replica],
    *,
    pinned: Collection[str] = (),
    checks_disk: bool = True,
    elsewhere: Collection[FileCopy] = (),
) -> FilesInFleet:
    """`models` are the files that each configured model needs, as far as this frontend knows; `elsewhere`
    what other frontends and object storage have of them."""
    users = defaultdict[str, set[str]](set)
    holders, keepers = defaultdict[FileCopy, set[NodeId]](set), defaultdict[FileCopy, set[NodeId]](set)
    here: set[FileCopy] = set(elsewhere)
    for model, files in models.items():
        for file in files:
            users[file.path].add(model)
            if file.here:
                here.add((file.path, file.size, file.sha256))
    for view in nodes:
        if view.report is None or not is_up(view.standing):
            continue
        for one in view.report.model_files:
            if one.sha256:
                copy = (one.path, one.size, one.sha256)
                for nodes_with in (holders,) if one.brought else (holders, keepers):
                    nodes_with[copy].add(view.standing.node.id)
    return FilesInFleet(
        models,
        {path: frozenset(names) for path, names in users.items()},
        frozenset(here),
        holders,
        keepers,
        rows,
        frozenset(pinned),
        checks_disk,
    )


PERSONS: Final = (
    "its worker did not fetch it: a person put it there, or a frontend that shares the folder did"
)
UNKNOWN_CONTENT: Final = "its content is not known until a load needs it"
LAST_COPY: Final = "no other copy is known in the fleet"
ONE_STAYS: Final = "of the copies that nodes have fetched, this one stays"
NOT_DROPPED: Final = "its worker is too old to remove it"


def disk_of(view: ObservedNode, fleet: FilesInFleet, loading: str = "") -> NodeDisk:
    """`loading` is the model for which room is wanted: what is there of it already stays."""
    node, report = view.standing.node, view.report
    free = node.resources.available_disk if fleet.checks_disk and node.resources.total_disk else None
    if report is None:
        return NodeDisk(node.name, budget_bytes=files_budget(node, ""), free_bytes=free)
    at_work = _at_work(view, fleet.rows)
    if loading:
        at_work.setdefault(loading, "is being loaded")
    files = tuple(_held(file, view, fleet, at_work) for file in report.model_files)
    return NodeDisk(
        node.name,
        files,
        report.fetched_bytes,
        files_budget(node, report.model_files_budget),
        free,
        *_coming(view, fleet, loading),
        _parts(view, fleet, loading),
    )


def files_budget(node: Node, of_worker: str) -> int | None:
    """A worker's budget that cannot be read is none; an admin's was checked."""
    text = of_worker if node.files_budget_override is None else node.files_budget_override
    try:
        return model_files_ceiling(text, node.resources.total_disk)
    except Invalid:
        return None


def _at_work(view: ObservedNode, rows: Sequence[Replica]) -> dict[str, str]:
    """What each model on the node does, in words."""
    at_work = {one.model_id: "is loaded" for one in (view.report.replicas if view.report else ())}
    own = [row for row in rows if row.node == view.standing.node.id]
    return at_work | {row.key.model: f"is {row.state.value}" for row in own}


def _held(file: ModelFile, view: ObservedNode, fleet: FilesInFleet, at_work: Mapping[str, str]) -> FileOnNode:
    # For a model that is not there any more it was fetched, too: then no model needs it.
    models = fleet.users.get(file.path, frozenset()) | {
        name for name in file.models if name in fleet.models or name in at_work
    }
    keep = _keep(file, models, view, fleet, at_work)
    return FileOnNode(file.path, file.size, file.sha256, file.brought, file.used_ms, models, keep, file.inode)


def _keep(
    file: ModelFile,
    models: frozenset[str],
    view: ObservedNode,
    fleet: FilesInFleet,
    at_work: Mapping[str, str],
) -> str:
    if not file.brought:
        return PERSONS
    if not file.sha256:
        return UNKNOWN_CONTENT
    if view.report is not None and not view.report.drops_files:
        return NOT_DROPPED
    if busy := sorted(models & at_work.keys()):
        return f"{busy[0]} {at_work[busy[0]]}"
    if pinned := sorted(models & fleet.pinned):
        return f"{pinned[0]} is pinned"
    return _kept_for_the_fleet(file, view.standing.node.id, fleet)


def _kept_for_the_fleet(file: ModelFile, node: NodeId, fleet: FilesInFleet) -> str:
    """Nothing where another copy stays: here, or where a person has put it on a node that is up.

    Of nodes that have fetched it the first keeps it, so that no two of them let go of it at once, each for
    the other's sake.
    """
    copy = (file.path, file.size, file.sha256)
    if copy in fleet.here or (file.path, file.size, "") in fleet.here or fleet.keepers.get(copy):
        return ""
    others = [other for other in fleet.holders.get(copy, ()) if other != node]
    if any(other < node for other in others):
        return ""
    return ONE_STAYS if others else LAST_COPY


def _parts(view: ObservedNode, fleet: FilesInFleet, loading: str) -> tuple[PartOnNode, ...]:
    """A load whose worker was killed may go on with what has come. Of files whose hash a load has yet to
    learn, it cannot be told which they are."""
    assert view.report is not None
    models = {row.key.model for row in _on_their_way(view, fleet)} | ({loading} if loading else set())
    loads = [(model, file) for model in sorted(models) for file in fleet.models.get(model, ())]
    coming = {file.sha256: model for model, file in loads}

    def keep(sha256: str) -> str:
        if not view.report or not view.report.drops_parts:
            return NOT_DROPPED
        model = coming.get(sha256) or coming.get("")
        return f"{model} is being copied there" if model else ""

    return tuple(
        PartOnNode(one.sha256, one.size, keep(one.sha256)) for one in view.report.model_files_partial
    )


def _on_their_way(view: ObservedNode, fleet: FilesInFleet) -> list[Replica]:
    copying = (ReplicaState.STAGING, ReplicaState.LOADING)
    return [row for row in fleet.rows if row.node == view.standing.node.id and row.state in copying]


def _coming(view: ObservedNode, fleet: FilesInFleet, loading: str) -> tuple[int, int]:
    """What other loads there have yet to copy, as far as the node's report tells, and what of it has arrived.
    Of loads that have begun, only those count that began earlier: of two for which there is no room together,
    the later one is refused, and not both."""
    assert view.report is not None
    on_their_way = _on_their_way(view, fleet)
    own = min((_begun(row) for row in on_their_way if row.key.model == loading), default=None)
    there = {file.path for file in view.report.model_files}
    coming = {
        file.path: file
        for row in on_their_way
        if row.key.model != loading and (own is None or _begun(row) < own)
        for file in fleet.models.get(row.key.model, ())
        if file.path not in there
    }
    return sum(file.size for file in coming.values()), arrived(coming.values(), view.report)


def _begun(row: Replica) -> tuple[float, ReplicaKey]:
    return (0.0 if row.created_at is None else row.created_at.timestamp(), row.key)
