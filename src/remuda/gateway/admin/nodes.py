"""The admin API for nodes, as the contract has it, plus each node's history."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core import limits
from remuda.core.errors import Invalid
from remuda.fleet.node_views import current_report
from remuda.gateway import node_views
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import (
    KNOWN_FILTERS,
    LabelPath,
    NodePath,
    answer,
    gives,
    read,
    read_known,
    refuses,
    takes,
)
from remuda.gateway.model_views import counted, current_reports, replicas, with_room
from remuda.gateway.services import Svc
from remuda.wire import nodes as wire
from remuda.wire.admin import History, HistoryItem, NodeViews

routes = APIRouter(prefix="/api", tags=["nodes"], dependencies=[Depends(require_admin)])


@routes.get("/nodes", responses=gives(NodeViews, 401))
async def list_nodes(svc: Svc) -> Response:
    """Every node with its status and the facts behind it."""
    standings = await svc.registry.standings()
    reports = await current_reports(svc.serving, standings)
    rows, in_flight = await replicas(svc.serving.models, reports), svc.serving.in_flight
    views = []
    for one in standings:
        report = reports[one.node.id]
        view = counted(node_views.node_view(one, report), rows, in_flight)
        views.append(with_room(view, one, rows, report))
    return answer(NodeViews(views))


@routes.get("/nodes/{node_id}", responses=gives(wire.NodeView, 401, 404))
async def one_node(node_id: NodePath, svc: Svc) -> Response:
    """One node."""
    standing = await svc.registry.standing(node_id)
    report = current_report(standing.node)
    rows = await replicas(svc.serving.models, {node_id: report})
    view = counted(node_views.node_view(standing, report), rows, svc.serving.in_flight)
    return answer(with_room(view, standing, rows, report))


@routes.delete("/nodes/{node_id}", responses=gives(wire.NodeMessage, 401, 404))
async def remove_node(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Stop the worker, forget the node and shut out its bus credentials. Its history stays."""
    await svc.registry.remove(node_id, admin)
    return answer(wire.NODE_DEREGISTERED)


@routes.post("/nodes/{node_id}/drain", responses=gives(wire.NodeMessage, 401, 404))
async def drain_node(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """No new work for this node, also after its worker restarts, until it is resumed."""
    await svc.registry.drain(node_id, admin)
    await svc.serving.routed.fleet_changed()
    return answer(wire.NODE_DRAINING)


@routes.post("/nodes/{node_id}/resume", responses=gives(wire.NodeMessage, 401, 404))
async def resume_node(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Let drained nodes take work again."""
    await svc.registry.resume(node_id, admin)
    await svc.serving.routed.fleet_changed()
    return answer(wire.NODE_RESUMED)


@routes.post("/nodes/{node_id}/approve", responses=gives(wire.ApproveReply, 400, 401, 404))
async def approve_node(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Let a pending node in."""
    admitted = await svc.registry.approve(node_id, admin)
    node, credentials = admitted.node, admitted.credentials
    return answer(
        wire.ApproveReply(
            id=node.id,
            name=node.name,
            node_type=node.node_type,
            status=(await svc.registry.standing(node_id)).status,
            message="node approved",
            nats_jwt=credentials.jwt if credentials else "",
            nats_user_seed=credentials.seed if credentials else "",
        )
    )


@routes.post(
    "/nodes/invites",
    openapi_extra=takes(wire.InviteBody),
    responses=gives(wire.InviteReply, 400, 401, 409, 503),
)
async def invite_node(request: Request, svc: Svc, admin: Admin) -> Response:
    """A registration token that lets in one peer, under this name only. Asked again, it is the same."""
    name = (await read_known(request, wire.InviteBody)).name
    if problem := wire.name_problem(name):
        raise Invalid(problem)
    token = await svc.registry.invite(name, admin)
    return answer(wire.InviteReply(name=name, registration_token=token))


@routes.delete("/nodes/invites/{name}", responses=gives(wire.NodeMessage, 401, 404, 503))
async def withdraw_invite(name: str, svc: Svc, admin: Admin) -> Response:
    """The invite is no longer valid, and neither is the approval of the node that registered with it."""
    await svc.registry.withdraw_invite(name, admin)
    await svc.serving.routed.fleet_changed()
    return answer(wire.INVITE_WITHDRAWN)


@routes.get("/nodes/{node_id}/labels", responses=gives(wire.Labels, 401, 404))
async def labels(node_id: NodePath, svc: Svc) -> Response:
    """A node's labels, from all sources."""
    return answer(wire.Labels(node_views.labels_view((await svc.registry.standing(node_id)).node)))


@routes.put(
    "/nodes/{node_id}/labels",
    openapi_extra=takes(wire.Labels),
    responses=gives(wire.Labels, 400, 401, 404),
)
async def replace_labels(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """These labels instead of all others; automatic ones return with the next registration."""
    wanted = (await read(request, wire.Labels)).root
    node_views.check_labels(wanted)
    node = await svc.registry.set_labels(node_id, wanted, admin, keep_others=False)
    return answer(wire.Labels(node_views.labels_view(node)))


@routes.patch(
    "/nodes/{node_id}/labels",
    openapi_extra=takes(wire.Labels),
    responses=gives(wire.Labels, 400, 401, 404),
)
async def merge_labels(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """These labels in addition to the others."""
    wanted = (await read(request, wire.Labels)).root
    node_views.check_labels(wanted)
    node = await svc.registry.set_labels(node_id, wanted, admin, keep_others=True)
    return answer(wire.Labels(node_views.labels_view(node)))


@routes.delete(
    "/nodes/{node_id}/labels/{key:path}",  # Keys may hold slashes.
    status_code=204,
    response_class=Response,
    responses=refuses(400, 401, 404, 409, 503),
)
async def remove_label(node_id: NodePath, key: LabelPath, svc: Svc, admin: Admin) -> Response:
    """Remove a label that an admin set. 409 for a label of the worker's settings, or one derived by the
    frontend: the next registration would bring it back."""
    await svc.registry.remove_label(node_id, key, admin)
    return Response(status_code=204)


@routes.put(
    "/nodes/{node_id}/vram-budget",
    openapi_extra=takes(wire.VramBudgetBody),
    responses=gives(wire.VramBudgetReply, 400, 401, 404),
)
async def set_vram_budget(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Cap this node's VRAM, whatever its worker was configured with; empty means no cap."""
    wanted = await read(request, wire.VramBudgetBody)
    node = await svc.registry.set_budget(node_id, wanted.value, admin)
    return answer(wire.VramBudgetReply(vram_budget=node.effective_budget))


@routes.delete("/nodes/{node_id}/vram-budget", responses=gives(wire.ResetReply, 401, 404))
async def reset_vram_budget(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Back to what the worker was configured with."""
    await svc.registry.set_budget(node_id, None, admin)
    return answer(wire.ResetReply())


@routes.put(
    "/nodes/{node_id}/max-replicas-per-model",
    openapi_extra=takes(wire.MaxReplicasBody),
    responses=gives(wire.MaxReplicasReply, 400, 401, 404),
)
async def set_max_replicas(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """The most replicas of one model on this node, whatever its worker was configured with."""
    wanted = await read(request, wire.MaxReplicasBody)
    node = await svc.registry.set_max_replicas(node_id, wanted.value, admin)
    return answer(wire.MaxReplicasReply(max_replicas_per_model=node.effective_max_replicas))


@routes.delete("/nodes/{node_id}/max-replicas-per-model", responses=gives(wire.ResetReply, 401, 404))
async def reset_max_replicas(node_id: NodePath, svc: Svc, admin: Admin) -> Response:
    """Back to what the worker was configured with."""
    await svc.registry.set_max_replicas(node_id, None, admin)
    return answer(wire.ResetReply())


@routes.get("/history", responses=gives(History, 400, 401), dependencies=[KNOWN_FILTERS])
async def history(
    svc: Svc,
    node: Annotated[str | None, Query(description="Only this node's, by name.")] = None,
    limit: Annotated[int, Query(ge=1, le=limits.HISTORY_PAGE_MAX)] = 100,
) -> Response:
    """What was done to nodes, newest first; removed ones included, under the name they had."""
    entries = await svc.registry.history(node, limit)
    return answer(
        History(
            [
                HistoryItem(
                    at=entry.at,
                    node_id=entry.node_id or "",
                    node_name=entry.node_name,
                    event=entry.event,
                    detail=entry.detail,
                    actor=entry.actor,
                )
                for entry in entries
            ]
        )
    )
