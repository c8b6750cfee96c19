"""What each node can offer to a model, from what is known of the fleet and its replicas: memory and files.
Pure.

Memory that was set aside is taken off what a node reports for as long as its report cannot show it: once
a replica is loaded and a later heartbeat has come, the report does, and it is not taken off twice. VRAM
and RAM are accounts of their own, except where they are the same memory.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from remuda.core import limits
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Reachability, Standing
from remuda.fleet.model import Node, Resources, node_vram_ceiling
from remuda.fleet.verdicts import (
    ObservedNode,
    installed,
    is_localai,
    may_take_work,
    why_no_replicas,
    why_no_vram,
)
from remuda.models.files import NeededFile
from remuda.models.gguf import all_parts
from remuda.models.memory import NO_MEMORY, MemoryUse
from remuda.ops.model import OpId
from remuda.scheduler.disk_room import DropPlan, NoRoom, disk_of, room_for
from remuda.scheduler.eviction import may_ask, staying, why_held
from remuda.scheduler.facts import FactsByNode, PlacementFacts, is_among, is_beside
from remuda.scheduler.measured_memory import MemoryBook, MemoryKey, build_of, hardware_of, reported_use
from remuda.scheduler.measured_speed import RateBook
from remuda.scheduler.model import (
    FilesTold,
    GpuOffer,
    HoldReason,
    Need,
    NodeOffer,
    Replica,
    ReplicaState,
    Resident,
)
from remuda.scheduler.staging import NOTHING_TO_COPY, CopyPlan, files_on, planned_copy
from remuda.wire.nodes import CutOffFile, Report

_NOT_STORED = OpId("not-stored")
_UNTOLD = "its worker has not said yet what it has installed; try again in a few seconds"
_CPU: Final = re.compile(r"(?<![a-z0-9])cpu(?![a-z0-9])")


_FIGURES_UNDER_WAY: Final = timedelta(seconds=5)  # They may be older than their arrival by so much.
_SHARE_RAM: Final = ("metal", "nvidia-l4t")  # Capabilities of machines whose GPU has no memory of its own.
HEARTBEAT_DUE: Final = timedelta(seconds=limits.DIAL_GRACE_S)  # It was not heard since the dials failed.


def offers(need: Need, fleet: PlacementFacts) -> list[NodeOffer]:
    """One for each node, also for those that cannot be considered."""
    by_node = FactsByNode(need, fleet)
    return [offer_of(need, view, by_node) for view in fleet.nodes]


def offer_of(need: Need, view: ObservedNode, facts: FactsByNode) -> NodeOffer:
    node, fleet = view.standing.node, facts.fleet
    rows = facts.rows_on(node.id)
    figures = node.resources
    ceiling = node_vram_ceiling(node)
    unreached = view.standing.unreached.get(fleet.frontend, "")
    uses = {row.key: use_of(row, view.report) for row in rows}
    vram_free, ram_free = _free(node, ceiling, uses, {row.key for row in rows if is_shown(row, node)})
    measured_in_vram, measured_in_ram = _measured(need, view, facts.memory)
    stay = staying(rows, facts.stays)
    residents, held = _residents(need, rows, uses, facts, stay)
    leaving = sum(_leaves(row) and row.key.model == need.model for row in rows)
    copy = planned_copy(fleet.files, view, facts.giver_of) if fleet.files and not fleet.shared else None
    room = None if copy is None else _room(need, copy, view, facts)
    return NodeOffer(
        node=node.id,
        name=node.name,
        unfit=_unfit(view.standing, unreached, fleet),
        approved=node.approved,
        unreached=bool(unreached),
        passing=_passing(view.standing, unreached=bool(unreached)),
        has_backend=any(need.backend in (one.name, one.alias) for one in installed(view) or ()),
        has_file=fleet.shared
        or (_has_files(view, need, fleet.files) if copy is None else copy == NOTHING_TO_COPY),
        copied_bytes=0 if copy is None else copy.size_bytes,
        copied_from="" if copy is None else copy.source,
        no_room=room.why if isinstance(room, NoRoom) else "",
        dropped_bytes=sum(one.size for one in room.drop) if isinstance(room, DropPlan) else 0,
        differs="" if copy is None else copy.differs,
        files_told=_files_told(view, fleet.files),
        models_path="" if view.report is None else view.report.models_path,
        cut_off=_cut_off(view, need.file),
        labels={key: label.value for key, label in node.labels.items()},
        slots=node.effective_max_replicas + leaving,
        slots_raised_by=_raises_slots(node),
        vram_claimed=why_no_vram(view),
        vram_total=figures.total_vram if ceiling is None else ceiling,
        vram_free=vram_free,
        vram_used=_in_vram(uses.values()),
        ram_total=figures.total_ram,
        ram_free=ram_free,
        unified=_unified(figures),
        disk_known=fleet.checks_disk and figures.total_disk > 0,
        disk_free=figures.available_disk,
        residents=residents,
        excluded_by=tuple(sorted({key.model for key in stay & facts.excluding})),
        kept=held,
        beside=any(is_beside(row, need.model) for row in rows),
        spreads=facts.spreads,
        unwished=fleet.wishes.of(node),
        reserved=node.id in fleet.turn.reserved,
        evicts=fleet.turn.evicts,
        gpus=_gpu_offers(rows, uses, view, node),
        busy=sum(fleet.in_flight(row.key) for row in rows),
        measured_in_vram=measured_in_vram,
        measured_in_ram=measured_in_ram,
        tokens_per_s=speed_of(need, node.id, fleet.speeds),
    )


def _measured(
    need: Need, view: ObservedNode, memory: MemoryBook
) -> tuple[MemoryUse | None, MemoryUse | None]:
    """In VRAM and in RAM."""
    if not memory.uses:
        return None, None
    build, hardware = build_of(view, need.backend), hardware_of(view.standing.node)
    kind = MemoryKey(need.model, need.revision, build, hardware)
    return memory.of(kind), memory.of(kind._replace(hardware=""))


def _room(need: Need, copy: CopyPlan, view: ObservedNode, facts: FactsByNode) -> DropPlan | NoRoom:
    disk = disk_of(view, facts.fetched_on(view.standing.node.id), need.model)
    return room_for(copy.size_bytes, disk, copy.arrived_bytes)


def _unfit(standing: Standing, unreached: str, fleet: PlacementFacts) -> str:
    """Our workers pass requests on through the port that was dialled; LocalAI's backends have their own."""
    no_requests = "" if is_localai(standing.node) else unreached
    return why_no_replicas(standing) or standing.stopped or no_requests or fleet.unfit(standing.node.id)


def speed_of(need: Need, node: NodeId, speeds: RateBook) -> float:
    expected = speeds.tokens_per_s(node, need.model, need.backend, need.weights_bytes)
    return 0.0 if expected is None else expected.per_s


def _passing(standing: Standing, *, unreached: bool) -> bool:
    """Whether a node that takes no replicas now is likely to soon, by itself. A worker that was killed may be
    started again: which frontend has noticed that first makes no difference. One that is heard but cannot be
    dialled stays as it is until its port is opened."""
    node = standing.node
    if standing.uncommandable or not may_take_work(node):
        return bool(node.ended)
    overdue = standing.reachability is Reachability.SILENT
    unheard = unreached and standing.heard_ago >= HEARTBEAT_DUE
    return overdue or unheard or bool(standing.stopped or node.ended)


def _raises_slots(node: Node) -> str:
    """What an admin has set counts more than what the worker was started with."""
    if node.max_replicas_override is not None:
        return f"PUT /api/nodes/{node.id}/max-replicas-per-model"
    return f"{node.setting('--max-replicas-per-model', 'LOCALAI_MAX_REPLICAS_PER_MODEL')} on its worker"


def _has_files(view: ObservedNode, need: Need, files: Sequence[NeededFile]) -> bool:
    """Of a node to which nothing can be copied."""
    if view.report is None or view.report.fetches_files or not files:
        return has_file(view, need.file)
    found = files_on(files, view.report)
    return not found.lacking and not found.differs


def has_file(view: ObservedNode, file: str) -> bool:
    """Whether the node reports such a file with all its parts, or of a folder of that name with something
    in it."""
    if view.report is None or not file:
        return False
    return is_among(file, {one.path for one in view.report.model_files})


def _cut_off(view: ObservedNode, file: str) -> CutOffFile | None:
    """The part of that file that the node has not got to its end."""
    if view.report is None or not file or not view.report.model_files_cut_off:
        return None
    parts = all_parts(file)
    return next((one for one in view.report.model_files_cut_off if one.path in parts), None)


def _files_told(view: ObservedNode, files: Sequence[NeededFile]) -> FilesTold:
    if not view.reports:
        return FilesTold.NEVER
    if view.report is None:
        return FilesTold.NOT_YET
    if files and not view.report.fetches_files:
        return FilesTold.CANNOT_FETCH
    return FilesTold.SOME if view.report.model_files_more else FilesTold.ALL


# Memory.


def _unified(figures: Resources) -> bool:
    """Such machines report their RAM as VRAM; of some it is only known what they are."""
    if not figures.total_vram or not figures.total_ram:
        return False
    return figures.total_vram == figures.total_ram or figures.capability.startswith(_SHARE_RAM)


def use_of(row: Replica, report: Report | None) -> MemoryUse:
    """What it takes, as its worker measured it. RAM fills while a replica works, so of that it is at least
    what was set aside; before it is loaded that is all there is."""
    told = reported_use(row, report) or NO_MEMORY
    if row.in_vram:
        vram = told.vram_bytes or row.memory_bytes
        return MemoryUse(vram, max(told.ram_bytes, row.ram_beside_bytes))
    return MemoryUse(0, max(told.ram_bytes, row.memory_bytes))


def _free(
    node: Node, budget: int | None, uses: Mapping[ReplicaKey, MemoryUse], shown: Collection[ReplicaKey]
) -> tuple[int, int]:
    """VRAM and RAM. A budget caps what replicas use together, whatever others on that machine leave free. So
    does all RAM there is: a report takes weights that are only mapped for free. Less than nothing, where more
    is used than may be: what is unloaded has to make up for that as well."""
    figures = node.resources
    unified = _unified(figures)
    not_shown = [use for key, use in uses.items() if key not in shown]
    vram = figures.available_vram - _in_vram(not_shown)
    if budget is not None:
        vram = min(vram, budget - _in_vram(uses.values()))
    ram = min(
        figures.available_ram - _in_ram(not_shown, unified=unified),
        figures.total_ram - _in_ram(uses.values(), unified=unified),
    )
    if unified:
        vram = min(vram, ram)
    return vram, ram


def memory_left(node: Node, rows: Sequence[Replica], report: Report | None) -> tuple[MemoryUse, MemoryUse]:
    """What of a node's memories a model could be given now without another leaving, and what is set aside for
    those that are there: for screens, the same figures that placing goes by."""
    uses = {row.key: use_of(row, report) for row in rows}
    shown = {row.key for row in rows if is_shown(row, node)}
    vram, ram = _free(node, node_vram_ceiling(node), uses, shown)
    used = MemoryUse(_in_vram(uses.values()), _in_ram(uses.values(), unified=False))
    return MemoryUse(max(vram, 0), max(ram, 0)), used


def _gpu_offers(
    rows: Sequence[Replica], uses: Mapping[ReplicaKey, MemoryUse], view: ObservedNode, node: Node
) -> tuple[GpuOffer, ...]:
    """As reported, less what was set aside there. What may go to any of them is taken off each."""
    if view.report is None or not view.report.gpus:
        return ()
    not_shown = [row for row in rows if row.in_vram and not is_shown(row, node)]

    def set_aside(index: int) -> int:
        on = (row for row in not_shown if not row.gpus or index in row.gpus)
        return sum(uses[row.key].vram_bytes // max(len(row.gpus), 1) for row in on)

    def used(index: int) -> int:
        on = (row for row in rows if row.in_vram and index in row.gpus)
        return sum(uses[row.key].vram_bytes // len(row.gpus) for row in on)

    return tuple(
        GpuOffer(gpu.index, gpu.total_vram, gpu.available_vram - set_aside(gpu.index), used=used(gpu.index))
        for gpu in view.report.gpus
    )


def _in_vram(uses: Iterable[MemoryUse]) -> int:
    return sum(use.vram_bytes for use in uses)


def _in_ram(uses: Iterable[MemoryUse], *, unified: bool) -> int:
    return sum(use.ram_bytes + (use.vram_bytes if unified else 0) for use in uses)


def is_shown(row: Replica, node: Node) -> bool:
    """The node's figures were taken after it had its memory."""
    if row.state is ReplicaState.LOADED:
        written = row.updated_at
        return written is not None and written <= node.last_heartbeat - _FIGURES_UNDER_WAY
    return _leaves(row)


# Residents.


def _leaves(row: Replica) -> bool:
    return row.state is ReplicaState.UNLOADING


def last_used(row: Replica, now: datetime) -> datetime:
    loaded_at = row.updated_at or now
    return max(row.last_used or loaded_at, loaded_at)


def _residents(
    need: Need,
    rows: Sequence[Replica],
    uses: Mapping[ReplicaKey, MemoryUse],
    facts: FactsByNode,
    stay: Collection[ReplicaKey],
) -> tuple[tuple[Resident, ...], tuple[Resident, ...]]:
    """Those that may leave, with those of the same model, which take a slot; and those that stay however long
    one waits."""
    same = {row.key for row in rows if row.key not in stay and is_same(row, need)}

    def made(row: Replica) -> Resident:
        return _resident(row, uses[row.key], facts, stays=row.key in stay, same=row.key in same)

    may_leave = tuple(made(row) for row in rows if row.key not in stay or row.key.model == need.model)
    return may_leave, tuple(made(row) for row in rows if row.key in stay or row.key in same)


def is_same(row: Replica, need: Need) -> bool:
    """It is what is to be loaded: nothing is gained by unloading it for that."""
    return (row.key.model, row.revision) == (need.model, need.revision) and row.state is ReplicaState.LOADED


def _resident(
    row: Replica, use: MemoryUse, facts: FactsByNode, *, stays: bool, same: bool = False
) -> Resident:
    fleet, now = facts.fleet, facts.fleet.replicas.now
    hold = why_held(row, now, fleet.in_flight, fleet.turn)
    movable = hold is None and not stays and may_ask(row, fleet.turn)
    if same:
        hold, movable = HoldReason.SAME, False
    elif stays:
        hold = HoldReason.PINNED if row.key.model in fleet.pinned else HoldReason.KEPT
    return Resident(
        key=row.key,
        memory_bytes=use.vram_bytes if row.in_vram else use.ram_bytes,
        ram_beside_bytes=use.ram_bytes if row.in_vram else 0,
        in_vram=row.in_vram,
        movable=movable,
        last_used=last_used(row, now),
        gpus=row.gpus,
        excludes=row.key in facts.excluding,
        hold=hold,
    )
