"""Models and replicas in the words of the API."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from anyio.to_thread import run_sync

from remuda.core import limits
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Reachability, Standing
from remuda.gateway.services import Services, Serving
from remuda.models import keep_alive
from remuda.models.config import ArtifactSource, ModelConfig
from remuda.models.memory import MemoryUse, known_context
from remuda.models.model_folder import FOLDER_CONFIGS
from remuda.router.loading import LoadStatus
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.model import (
    ModelFit,
    NodeFit,
    Placed,
    Replica,
    ReplicaState,
    StoredModel,
    Unplaceable,
    why_stopped,
)
from remuda.scheduler.model_edits import TakenOver
from remuda.scheduler.offers import memory_left
from remuda.scheduler.scheduling import wanted_in_words
from remuda.scheduler.service import AddedModel, ModelProblem, Models
from remuda.wire.broadcasts import StagingStatus
from remuda.wire.codec import GO_ZERO_TIME
from remuda.wire.node_facts import NodeMemory
from remuda.wire.nodes import ModelRow, NodeView, Report
from remuda.wire.scheduling import WantedReplicas
from remuda.wire.serving import (
    BackendState,
    LoadingView,
    MemoryUsage,
    ModelAdded,
    ModelDetails,
    ModelFileView,
    ModelFits,
    ModelItem,
    ModelStatus,
    ModelText,
    NodeFitView,
    ReplicaView,
)

_ON_THEIR_WAY = (ReplicaState.STAGING, ReplicaState.LOADING)
UNREACHABLE: Final = "unreachable"
_CONFIRMED_FOR: Final = timedelta(seconds=30)  # Longer than between two heartbeats.
_REPORT_DUE: Final = timedelta(seconds=limits.DIAL_GRACE_S)
_OFFLINE: Final = (Reachability.GONE, Reachability.DEPARTED)


def replica_view(row: Replica, standings: Iterable[Standing], serving: Serving) -> ReplicaView:
    """What is loaded on an offline node is unknown. For a silent one the view says when it was last
    confirmed."""
    standing = next((one for one in standings if one.node.id == row.node), None)
    state, why = row.state.value, "" if row.why is None else str(row.why)
    if row.state is ReplicaState.LOADED and standing is not None:
        missed = f"{standing.node.name} could not be reached a moment ago"
        gone = missed if row.node in serving.out_of_reach() else _why_not_there(row, standing)
        state, why = (UNREACHABLE, gone) if gone else (state, why)
        if not gone and standing.node.drained:
            why = f"{standing.node.name} is drained: it takes no new requests"
    measured = serving.measured(row)
    idle_at = serving.unloads_at(row) if state == ReplicaState.LOADED else None
    return ReplicaView(
        model=row.key.model,
        index=row.key.index,
        node_id=row.node,
        node="" if standing is None else standing.node.name,
        state=state,
        backend=row.backend,
        address=row.address,
        protocol=row.protocol or "grpc",
        in_flight=serving.in_flight(row.key),
        parallel=row.parallel,
        memory_bytes=row.memory_bytes if measured is None else _main_memory(measured, row),
        estimated=measured is None and bool(row.memory_bytes),
        set_aside_bytes=max(row.memory_bytes, 0 if measured is None else _main_memory(measured, row))
        if not row.in_vram
        else 0,
        in_vram=row.in_vram,
        gpus=row.gpus,
        op_id=row.op,
        why=why,
        unconfirmed_since=_unconfirmed_since(standing) if state == ReplicaState.LOADED else None,
        last_used=row.last_used,
        unloads_at=idle_at,
    )


def _main_memory(use: MemoryUse, row: Replica) -> int:
    return use.vram_bytes if row.in_vram else use.ram_bytes


def _why_not_there(row: Replica, standing: Standing) -> str:
    """Why a row that says `loaded` is not believed; empty: nothing speaks against it."""
    node = standing.node
    if standing.reachability in _OFFLINE:
        return node.ended or f"{node.name} is offline"
    if standing.stopped or node.ended:
        return (
            node.ended
            or f"the worker on {node.name} has stopped, the machine is off, or the network to it is down"
        )
    if _out_of_reach(row, standing):
        return f"{node.name} cannot be reached"
    return "" if _of_this_boot(row, node.boot_id) else f"the worker on {node.name} was restarted"


def _out_of_reach(row: Replica, standing: Standing) -> bool:
    """Our worker's HTTP port passes on what HTTP backends are asked; those of gRPC have ports of their own,
    and are there as long as the worker says so."""
    if not standing.unreached or not standing.node.version:
        return False
    return row.protocol == "http" or standing.heard_ago >= _REPORT_DUE


def _of_this_boot(row: Replica, boot: str) -> bool:
    """A worker that was restarted has ended all processes of the boot before."""
    return row.boot is None or row.boot == boot


def _unconfirmed_since(standing: Standing | None) -> datetime | None:
    """A node that cannot be commanded is unhealthy as well, but goes on telling what it runs. One that was
    not heard lately confirms nothing, even if its status is as before because no frontend listened."""
    if standing is None:
        return None
    silent = standing.reachability is Reachability.SILENT and not standing.node.cut_off
    return standing.node.last_heartbeat if silent or standing.heartbeat_ago >= _CONFIRMED_FOR else None


async def model_rows(svc: Services) -> list[ModelRow]:
    """Every replica there is. Those of an earlier boot of their worker are about to be forgotten."""
    standings = await svc.registry.standings()
    boots = {one.node.id: one.node.boot_id for one in standings}
    rows = await current_replicas(svc.serving, standings)
    there = (row for row in rows if row.node not in boots or _of_this_boot(row, boots[row.node]))
    return [_model_row(row, svc.serving) for row in there]


async def current_replicas(serving: Serving, standings: Sequence[Standing]) -> list[Replica]:
    """`standings` are those of all nodes."""
    return await replicas(serving.models, await current_reports(serving, standings))


async def current_reports(serving: Serving, standings: Sequence[Standing]) -> Mapping[NodeId, Report | None]:
    """Of all nodes, which `standings` are of: those of their workers' present lives. New ones are parsed."""
    return await run_sync(serving.node_views.reports, standings)


async def replicas(models: Models, reports: Mapping[NodeId, Report | None]) -> list[Replica]:
    """Without those that their workers report to have stopped: they are about to be forgotten."""
    return [row for row in await models.replicas() if not why_stopped(row, reports.get(row.node))]


def counted(view: NodeView, replicas: Iterable[Replica], in_flight: Callable[[ReplicaKey], int]) -> NodeView:
    """The same node with what it serves, and the VRAM set aside for what is on its way there."""
    mine = [row for row in replicas if row.node == view.id]
    coming = [row for row in mine if row.state in _ON_THEIR_WAY and row.in_vram]
    boot = "" if view.remuda is None else view.remuda.boot_id
    loaded = sum(row.state is ReplicaState.LOADED and (not boot or _of_this_boot(row, boot)) for row in mine)
    return view.model_copy(
        update={
            "model_count": 0 if view.status == "offline" else loaded,
            "in_flight_count": sum(in_flight(row.key) for row in mine),
            "reserved_vram": sum(row.memory_bytes for row in coming),
        }
    )


def with_room(
    view: NodeView, standing: Standing, replicas: Iterable[Replica], report: Report | None
) -> NodeView:
    """The same node with the memory that a model could be given there now, as placing counts it."""
    if view.remuda is None or not standing.node.resources.total_ram:
        return view
    rows = [row for row in replicas if row.node == view.id]
    free, used = memory_left(standing.node, rows, report)
    memory = NodeMemory(
        free_vram=free.vram_bytes,
        free_ram=free.ram_bytes,
        set_aside_vram=used.vram_bytes,
        set_aside_ram=used.ram_bytes,
    )
    return view.model_copy(update={"remuda": view.remuda.model_copy(update={"memory": memory})})


def _model_row(row: Replica, serving: Serving) -> ModelRow:
    """In the contract's words. Its id is the process key: unique, and the same for as long as it is there."""
    return ModelRow(
        id=str(row.key),
        node_id=row.node,
        model_name=row.key.model,
        address=row.address,
        replica_index=row.key.index,
        in_flight=serving.in_flight(row.key),
        state=row.state,
        last_used=row.last_used or GO_ZERO_TIME,
        created_at=row.created_at or GO_ZERO_TIME,
        updated_at=row.updated_at or GO_ZERO_TIME,
        backend_type=row.backend,
        config_revision=row.revision,
    )


def nodes_by_file(serving: Serving, standings: Sequence[Standing]) -> Mapping[str, Sequence[str]]:
    """From files of models to the names of the nodes that have them."""
    reports, where = serving.node_views.reports(standings), defaultdict[str, list[str]](list)
    for standing in standings:
        report = reports[standing.node.id]
        for file in report.model_files if report is not None else ():
            where[file.path].append(standing.node.name)
    return where


def nodes_having(model: Catalogued, where: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names of the nodes that have all files of a model: those of its manifest, or else the file or folder
    that its configuration names. `where` is as above."""
    file, manifest = model.config.file.rstrip("/"), model.stored.manifest
    if manifest is None or not manifest.files:
        named = (file, *(f"{file}/{name}" for name in FOLDER_CONFIGS))
        return tuple(next((where[path] for path in named if path in where), ()))
    first, *others = [where.get(one.path, ()) for one in manifest.files]
    return tuple(name for name in first if all(name in names for names in others))


def model_item(
    model: Catalogued,
    replicas: Sequence[ReplicaView],
    with_files: Mapping[str, Sequence[str]],
    problem: ModelProblem,
) -> ModelItem:
    """`problem`: why it could not be loaded, which matters as long as it is not."""
    config, need = model.config, model.need(installed_size(model))
    own = tuple(one for one in replicas if one.model == config.id)
    return ModelItem(
        name=config.id,
        backend=config.backend,
        file=config.file,
        alias=config.alias,
        description=config.description,
        usecases=config.known_usecases,
        revision=config.revision,
        origin=model.stored.origin,
        size_bytes=need.weights_bytes,
        memory_bytes=need.memory_bytes,
        estimated=bool(need.memory_bytes),
        context_size=known_context(config, model.weights.header),
        pinned=config.pinned,
        nodes_with_files=nodes_having(model, with_files),
        on_frontend=model.here or model.stored.kept_by is not None,
        replicas=own,
        problem="" if own else problem.text,
        problem_details=() if own else problem.details,
        failed_at=None if own else problem.failed_at,
        fetching=problem.fetching,
        source="" if model.stored.manifest is None else model.stored.manifest.source,
        quantisation="" if model.weights.facts is None else model.weights.facts.precision,
        wanted=None if config.alias else wanted_replicas(model),
    )


def installed_size(model: Catalogued) -> int:
    """Of an installed model's weights, as all frontends know it, whichever has the file. 0: it is of
    another model, or of one with more than one file of weights."""
    config, manifest = model.config, model.stored.manifest
    files = () if manifest is None else manifest.files
    return next((one.size for one in files if one.path == config.file and not _has_parts(one.path)), 0)


def _has_parts(path: str) -> bool:
    """Of a GGUF file that was divided, which has its number in its name."""
    return "-of-" in path


def wanted_replicas(model: Catalogued) -> WantedReplicas:
    """By its configuration and what an admin declared."""
    config, declared = model.config, model.stored.terms is not None
    return replicas_of(config, "declared" if declared else "configured" if config.scaled else "default")


def replicas_of(config: ModelConfig, origin: str) -> WantedReplicas:
    return WantedReplicas(
        origin=origin,
        wanted=wanted_in_words(config),
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        every_node=config.everywhere,
        selector=dict(config.selector),
        pinned=config.pinned,
        keep_alive="" if config.keep_alive is None else keep_alive.render(config.keep_alive),
    )


def _installed_from(stored: StoredModel) -> dict[str, object]:
    """Where its bytes came from, of a model that was installed."""
    manifest = stored.manifest
    if manifest is None or not manifest.files:
        return {}
    files = tuple(ModelFileView(path=one.path, sha256=one.sha256) for one in manifest.files)
    return {
        "source": manifest.source,
        "source_revision": manifest.revision,
        "choice": manifest.choice,
        "notes": manifest.notes,
        "installed_files": files,
    }


def model_fits(found: ModelFit, size_unknown: str = "") -> ModelFits:
    """`size_unknown`: why it is not known how large the model is. What nodes lack for it is known all the
    same, but not that one of them could take it."""
    need = found.need
    nodes = [_node_fit(one, need.model) for one in found.nodes]
    if size_unknown:
        open_ = {"fits": False, "outcome": "unknown", "reason": f"size not known yet: {size_unknown}"}
        nodes = [one.model_copy(update=open_) if one.fits else one for one in nodes]
    return ModelFits(
        model=need.model,
        size_bytes=need.weights_bytes,
        memory_bytes=need.memory_bytes,
        size_unknown=size_unknown,
        nodes=tuple(nodes),
    )


def _outcome(one: NodeFit, model: str) -> str:
    offer = one.offer
    if isinstance(one.placed, Placed):
        return "fits"
    if offer.unfit:
        return "unusable"
    held = sum(resident.key.model == model for resident in offer.residents)
    return "loaded" if held and held >= offer.slots else "refused"


def _node_fit(one: NodeFit, model: str) -> NodeFitView:
    offer, placed = one.offer, one.placed
    view = NodeFitView(
        node_id=offer.node,
        node=offer.name,
        fits=isinstance(placed, Placed),
        outcome=_outcome(one, model),
        reason=one.why_not,
        vram_total=offer.vram_total,
        vram_free=max(offer.vram_free, 0),
        ram_total=offer.ram_total,
        ram_free=max(offer.ram_free, 0),
        disk_free=max(offer.disk_free, 0) if offer.disk_known else None,
    )
    if isinstance(placed, Unplaceable):
        return view.model_copy(update={"waiting_helps": placed.waiting_helps})
    unloads = tuple(str(key) for key in placed.evict)
    return view.model_copy(update={"in_vram": placed.in_vram, "unloads": unloads, "copies": placed.copied})


def model_details(model: Catalogued) -> ModelDetails:
    config, facts = model.config, model.weights.facts
    downloads = tuple(
        ModelFileView(path=one.filename, source=one.uri, sha256=one.sha256) for one in config.download_files
    )
    artifacts = tuple(
        ModelFileView(path=one.target or one.name, source=_repository(one.source)) for one in config.artifacts
    )
    vision = bool(config.mmproj) or "vision" in config.known_usecases
    details = ModelDetails(
        vision=vision, downloads=downloads, artifacts=artifacts, unknown_keys=config.unknown
    )
    details = details.model_copy(update=_installed_from(model.stored))
    if facts is None:
        return details
    layout = facts.layout
    return details.model_copy(
        update={
            "format": facts.format,
            "architecture": layout.architecture,
            "parameters": facts.parameters,
            "precision": facts.precision,
            "context_length": layout.context_length,
            "layers": layout.block_count,
            "embedding_length": layout.embedding_length,
            "vocabulary": layout.vocab_size,
            "experts": layout.expert_count,
            "chat_template": layout.has_chat_template,
            "vision": vision or layout.sees,
            "projector": "" if config.mmproj else facts.projector,
            "files": facts.files,
        }
    )


def _repository(source: ArtifactSource) -> str:
    revision = f"@{source.revision}" if source.revision else ""
    return f"{source.type}:{source.repo}{revision}" if source.type else f"{source.repo}{revision}"


def model_added(added: AddedModel, item: ModelItem) -> ModelAdded:
    return ModelAdded(
        model=item,
        replaced=added.replaced,
        unchanged=added.unchanged,
        unknown_keys=added.unknown_keys,
        warnings=added.warnings,
        no_node=added.no_node,
        reloads=added.reloads,
    )


def taken_over(taken: TakenOver, item: ModelItem) -> ModelAdded:
    added = model_added(taken.added, item)
    trouble = (taken.trouble,) if taken.trouble else ()
    return added.model_copy(update={"set_aside": taken.aside, "warnings": (*added.warnings, *trouble)})


def model_text(stored: StoredModel) -> ModelText:
    return ModelText(
        name=stored.name,
        config=stored.text,
        etag=stored.etag,
        origin=stored.origin,
        file=stored.file,
        host=stored.host,
    )


def model_status(replicas: Sequence[ReplicaView]) -> ModelStatus:
    """Of all replicas of one model together."""
    replicas = [one for one in replicas if one.state != UNREACHABLE]
    loaded = [one for one in replicas if one.state == ReplicaState.LOADED]
    if any(not one.in_flight for one in loaded):
        state = BackendState.READY
    else:
        state = BackendState.BUSY if replicas else BackendState.UNINITIALIZED
    memory = {f"{one.node or one.node_id}#{one.index}": one.memory_bytes for one in replicas}
    return ModelStatus(state=state, memory=MemoryUsage(total=sum(memory.values()), breakdown=memory))


def loading_view(status: LoadStatus) -> LoadingView:
    return LoadingView(
        model=status.model,
        state=status.state,
        node=status.node,
        progress=status.progress,
        bytes_sent=status.bytes_sent,
        total_bytes=status.total_bytes,
        file_index=status.file_index,
        total_files=status.total_files,
        eta_seconds=status.eta_seconds,
    )


def loading_elsewhere(told: StagingStatus) -> LoadingView:
    """Of a load that only another frontend on the bus knows, which has a store of its own."""
    return LoadingView(
        model=told.model_id,
        state="staging",
        node=told.node_name,
        progress=told.progress,
        bytes_sent=told.bytes_sent,
        total_bytes=told.total_bytes,
        file_index=told.file_index,
        total_files=told.total_files,
    )
