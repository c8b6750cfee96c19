"""Backends on one node: list, install, upgrade and delete."""

from fastapi import APIRouter, Depends, Request, Response

from remuda.core.errors import Invalid, Unavailable
from remuda.fleet.model import NodeType
from remuda.fleet.verdicts import installed
from remuda.gateway.admin.submitting import job, on_node, wait_for
from remuda.gateway.backend_pages import installed_backend
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import answer, gives, read, refuses, takes
from remuda.gateway.paths import NodePath
from remuda.gateway.services import Svc
from remuda.ops.model import Kind, Source
from remuda.wire.nodes import NodeMessage
from remuda.wire.operations import InstalledBackends, JobReply, NodeBackendBody, NodeInstallBody

routes = APIRouter(
    prefix="/api/nodes/{node_id}/backends", tags=["nodes"], dependencies=[Depends(require_admin)]
)


@routes.get("", responses=gives(InstalledBackends, 401, 404))
async def node_backends(node_id: NodePath, svc: Svc) -> Response:
    """What the node has installed, as it told last."""
    standing = await svc.registry.standing(node_id)
    if standing.node.node_type is not NodeType.BACKEND:
        return answer(InstalledBackends([]))
    node = next((one for one in await svc.ops.operations.nodes() if one.standing.node.id == node_id), None)
    listed = None if node is None else installed(node)
    if listed is None:
        raise Unavailable(
            f"{standing.node.name} has not reported yet what it has installed; it has been asked"
        )
    return answer(InstalledBackends([installed_backend(one) for one in listed] or None))


@routes.post(
    "/install",
    status_code=202,
    openapi_extra=takes(NodeInstallBody),
    responses=gives(JobReply, 400, 401, 404, 409, status=202),
)
async def install_on_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Have a backend on this node, from the galleries or from a place outside them."""
    body = await read(request, NodeInstallBody)
    if not body.backend and not body.uri:
        raise Invalid("backend: give a name, or the uri of a source")
    source = Source(body.backend, body.backend_galleries, body.uri, body.name, body.alias)
    accepted = await on_node(svc, Kind.INSTALL, source, admin, node_id)
    return answer(job(accepted, "backend installation started", status=True), 202)


@routes.post(
    "/upgrade",
    status_code=202,
    openapi_extra=takes(NodeBackendBody),
    responses=gives(JobReply, 400, 401, 404, 409, status=202),
)
async def upgrade_on_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Have the newest version of a backend that is there."""
    accepted = await on_node(svc, Kind.UPGRADE, await _named(request), admin, node_id)
    return answer(job(accepted, "backend upgrade started", status=True), 202)


@routes.post(
    "/delete",
    openapi_extra=takes(NodeBackendBody),
    responses=gives(NodeMessage, 400, 401, 404, 409) | refuses(500, 504),
)
async def delete_on_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Remove a backend, and answer when it is gone; 504 when that takes longer, and goes on."""
    accepted = await on_node(svc, Kind.REMOVE, await _named(request), admin, node_id)
    await wait_for(svc, accepted.view.operation.id)
    return answer(NodeMessage(message="backend deleted"))


async def _named(request: Request) -> Source:
    body = await read(request, NodeBackendBody)
    if not body.backend:
        raise Invalid("backend: must not be empty")
    return Source(body.backend)
