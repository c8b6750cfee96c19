"""Model files on a node: what is there, what they may come to, and making room."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Depends, Request, Response

from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import current_report
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import NodePath, answer, gives, read, read_known, takes
from remuda.gateway.services import Svc
from remuda.ops.model import Kind, State
from remuda.ops.ports import Filter, View
from remuda.scheduler.disk_room import (
    LAST_COPY,
    UNKNOWN_CONTENT,
    FileOnNode,
    ModelOnDisk,
    NodeDisk,
    NoRoom,
    PartOnNode,
)
from remuda.scheduler.file_room import Freeing, NoRoomForFiles, unplaced_name
from remuda.wire import disk as wire
from remuda.wire.nodes import ResetReply

_REMOVALS: Final = frozenset({Kind.REMOVE_MODEL})
_UNLESS_REMOVED: Final = frozenset({"", LAST_COPY, UNKNOWN_CONTENT})  # Says nothing of a removal's files.

routes = APIRouter(prefix="/api", tags=["nodes"], dependencies=[Depends(require_admin)])


@routes.get("/nodes/{node_id}/model-files", responses=gives(wire.NodeDiskView, 401, 404, 409))
async def model_files(node_id: NodePath, svc: Svc) -> Response:
    """The model files that the node reports, who needs them, and why each of them stays or may go."""
    standing = await svc.registry.standing(node_id)
    disk = await svc.serving.room.disk(node_id)
    removals = Filter(finished=False, kinds=_REMOVALS, node=standing.node.id, dismissed=True)
    going = removals_on(standing.node.id, await svc.ops.operations.views(removals))
    return answer(_view(standing, with_removals(disk, going)))


@routes.post(
    "/nodes/{node_id}/model-files/free",
    openapi_extra=takes(wire.FreeDiskBody),
    responses=gives(wire.FreedDisk, 400, 401, 404, 409, 502),
)
async def free_disk(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Remove model files that the fleet brought there and that may go, not used longest first. 409, before
    anything goes, if so much cannot be freed."""
    body = await read_known(request, wire.FreeDiskBody)
    freeing = await svc.serving.room.free(node_id, body.bytes, dry_run=body.dry_run)
    if isinstance(freeing.plan, NoRoom) and not body.dry_run:
        raise NoRoomForFiles(f"{freeing.disk.node}: {freeing.plan.why}")
    return answer(_freed(freeing, dry_run=body.dry_run))


@routes.put(
    "/nodes/{node_id}/model-files-budget",
    openapi_extra=takes(wire.FilesBudgetBody),
    responses=gives(wire.FilesBudgetReply, 400, 401, 404),
)
async def set_files_budget(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Limit the disk for model files that are fetched there, whatever its worker was configured with; empty
    means no limit. Nothing goes before room is needed."""
    wanted = await read(request, wire.FilesBudgetBody)
    node = await svc.registry.set_files_budget(node_id, wanted.value, admin)
    return answer(wire.FilesBudgetReply(model_files_budget=node.files_budget_override or ""))


@routes.delete("/nodes/{node_id}/model-files-budget", responses=gives(ResetReply, 401, 404))
async def reset_files_budget(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Back to what the worker was configured with."""
    await svc.registry.set_files_budget(node_id, None, admin)
    return answer(ResetReply())


def removals_on(node: NodeId, removals: Iterable[View]) -> Mapping[str, str]:
    """The files there that are to go with their model, and why they are still there."""
    return {
        path: f"its removal {_how_far(step.state, step.reason)} (operation {view.operation.id[:8]})"
        for view in removals
        for step in view.steps
        if step.node == node and not step.state.final and step.source.model is not None
        for path in step.source.model.files
    }


def _how_far(state: State, reason: str) -> str:
    if state is not State.PENDING:
        return "is under way"
    return f"waits: {reason}" if reason else "has not begun"


def with_removals(disk: NodeDisk, going: Mapping[str, str]) -> NodeDisk:
    files = tuple(
        replace(file, keep=going[file.path]) if file.path in going and file.keep in _UNLESS_REMOVED else file
        for file in disk.files
    )
    return replace(disk, files=files)


def _view(standing: Standing, disk: NodeDisk) -> wire.NodeDiskView:
    node, report = standing.node, current_report(standing.node)
    of_worker = "" if report is None else report.model_files_budget
    files = tuple(_file(file) for file in sorted(disk.files, key=lambda file: file.path))
    return wire.NodeDiskView(
        node=disk.node,
        files=(*files, *map(unplaced_file, disk.parts)),
        fetched_bytes=disk.fetched_bytes,
        budget=of_worker if node.files_budget_override is None else node.files_budget_override,
        budget_bytes=disk.budget_bytes,
        budget_manually_set=node.files_budget_override is not None,
        free_bytes=disk.free_bytes,
        total_bytes=node.resources.total_disk,
        coming_bytes=disk.coming_bytes,
    )


def _file(file: FileOnNode) -> wire.FileOnDisk:
    return wire.FileOnDisk(
        path=file.path,
        size=file.size,
        fetched=file.brought,
        used_ms=file.used_ms,
        models=tuple(sorted(file.models)),
        keep=file.keep,
    )


def unplaced_file(part: PartOnNode) -> wire.FileOnDisk:
    """By its hash, as its worker tells it. It is in no budget."""
    return wire.FileOnDisk(path=unplaced_name(part.sha256), size=part.size, keep=part.keep)


def _freed(freeing: Freeing, *, dry_run: bool) -> wire.FreedDisk:
    plan, done = freeing.plan, freeing.done
    going = () if isinstance(plan, NoRoom) else (*map(_part, plan.parts), *map(_model, plan.drop))
    return wire.FreedDisk(
        node=freeing.disk.node,
        dry_run=dry_run,
        models=going,
        freed_bytes=0 if done is None else done.size_bytes,
        kept=() if done is None else tuple(wire.KeptOnDisk(path=path, why=why) for path, why in done.kept),
        refused=plan.why if isinstance(plan, NoRoom) else "",
    )


def _part(part: PartOnNode) -> wire.ModelOnDiskView:
    return wire.ModelOnDiskView(size=part.size, files=(unplaced_name(part.sha256),))


def _model(model: ModelOnDisk) -> wire.ModelOnDiskView:
    return wire.ModelOnDiskView(
        name=model.name,
        size=model.size,
        used_ms=model.used_ms,
        files=tuple(file.path for file in model.files),
    )
