"""Backends: what there is in the whole fleet, and jobs that install, upgrade and delete them everywhere;
the same on one node; and the paths that older clients use.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Invalid, NotFound, Unavailable
from remuda.fleet.model import NodeType
from remuda.fleet.verdicts import installed, why_no_target
from remuda.gallery.model import usecases
from remuda.gateway.admin.operations import ask, job, on_node, wait_for
from remuda.gateway.backend_pages import BackendCatalogue, BackendQuery, fits, installed_backend
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import (
    BackendPath,
    NodePath,
    OpPath,
    Responses,
    answer,
    gives,
    one_of,
    read,
    refuses,
    takes,
)
from remuda.gateway.services import Services, Svc
from remuda.ops import op_views
from remuda.ops.model import OF_BACKENDS, Kind, Source
from remuda.ops.ports import Filter
from remuda.ops.service import OperationRequest
from remuda.ops.upgrades import Upgrade
from remuda.wire.broadcasts import GalleryStatus
from remuda.wire.nodes import NodeMessage
from remuda.wire.operations import (
    ApplyBody,
    ApplyReply,
    BackendFits,
    BackendItems,
    BackendsPage,
    BackendUsecases,
    DoneReply,
    DriftedNode,
    ExternalInstallBody,
    InstallConflict,
    InstalledBackends,
    InstalledItems,
    JobReply,
    JobView,
    NodeBackendBody,
    NodeInstallBody,
    UpgradeItem,
    UpgradeItems,
)

_AT_WORK_MAX = 1000
CONCRETE: Responses = {409: one_of(InstallConflict)}

routes = APIRouter(prefix="/api/backends", tags=["backends"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(BackendsPage, 400, 401))
async def list_backends(
    svc: Svc,
    term: Annotated[str, Query(max_length=200)] = "",
    tag: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    items: Annotated[int, Query(ge=1, le=1000)] = 9,
    sort: Annotated[Literal["", "name", "repository", "license", "status"], Query()] = "",
    order: Annotated[Literal["", "asc", "desc"], Query()] = "",
) -> Response:
    """A page of what galleries offer, with the nodes that have it."""
    catalogue = await look(svc)
    return answer(catalogue.page(BackendQuery(term, tag, page, items, sort, order == "desc")))


async def look(svc: Services) -> BackendCatalogue:
    nodes, readings = await svc.ops.operations.look()
    at_work = await svc.ops.operations.views(Filter(finished=False, kinds=OF_BACKENDS, limit=_AT_WORK_MAX))
    return BackendCatalogue(readings, nodes, at_work)


@routes.get("/fits", responses=gives(BackendFits, 401))
async def backend_fits(svc: Svc) -> Response:
    """Which nodes could run which backends, whether they have them or not."""
    nodes, readings = await svc.ops.operations.look()
    able = [node.standing.node.name for node in nodes if not why_no_target(node.standing)]
    now = svc.ops.operations.now()
    unread = tuple(reading.standing(now) for reading in readings if reading.trouble)
    return answer(BackendFits(nodes=tuple(able), backends=fits(nodes, readings), unread=unread))


@routes.get("/usecases", responses=gives(BackendUsecases, 401))
async def backend_usecases(svc: Svc) -> Response:
    """What backends are for, as far as their galleries tell."""
    return answer(BackendUsecases(usecases(await svc.ops.operations.readings())))


@routes.post("/install/{backend:path}", responses=gives(JobReply, 400, 401, 404, 409))
async def install_backend(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have a backend on every node that can run it; one build for certain hardware on the nodes it fits."""
    wish = OperationRequest(Kind.INSTALL, Source(backend), by=admin, concrete_for_all=True)
    accepted = await svc.ops.operations.submit(wish)
    return answer(job(accepted, "backend installation started"))


@routes.post(
    "/install-external",
    openapi_extra=takes(ExternalInstallBody),
    responses=gives(JobReply, 400, 401, 409),
)
async def install_external(request: Request, svc: Svc, admin: Admin) -> Response:
    """Have a backend from outside the galleries on every node."""
    body = await read(request, ExternalInstallBody)
    if not body.uri:
        raise Invalid("uri: must not be empty")
    source = Source(body.name, uri=body.uri, name=body.name, alias=body.alias)
    accepted = await ask(svc, Kind.INSTALL, source, admin)
    return answer(job(accepted, "external backend installation started"))


@routes.post("/delete/{backend:path}", responses=gives(JobReply, 401, 404, 409))
async def delete_backend(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have a backend on no node, those that are away included."""
    accepted = await ask(svc, Kind.REMOVE, Source(backend), admin)
    return answer(job(accepted, "backend deletion started"))


@routes.post(
    "/system/delete/{backend:path}",
    responses=gives(DoneReply, 401, 404, 409) | refuses(500, 504),
)
async def delete_system_backend(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """The same, answered when it is gone everywhere; 504 when that takes longer, and goes on."""
    accepted = await ask(svc, Kind.REMOVE, Source(backend), admin)
    await wait_for(svc, accepted.view.operation.id)
    return answer(DoneReply(message="Backend deleted successfully"))


@routes.get("/job/{op_id}", responses=gives(JobView, 401, 404))
async def job_status(op_id: OpPath, svc: Svc) -> Response:
    """How far a job is. One that is not known counts as queued, as peers have it."""
    try:
        return answer(op_views.job(await svc.ops.operations.view(op_id)))
    except NotFound:
        return answer(op_views.UNKNOWN_JOB)


@routes.get("/upgrades", responses=gives(UpgradeItems, 401))
async def list_upgrades(svc: Svc) -> Response:
    """What could be upgraded, and where nodes differ."""
    return answer(upgrade_items((await svc.ops.upgrades.current()).upgrades))


@routes.post("/upgrades/check", responses=gives(UpgradeItems, 401))
async def check_upgrades(svc: Svc) -> Response:
    """The same, after a look at the registries that takes a few seconds at most."""
    return answer(upgrade_items((await svc.ops.upgrades.check()).upgrades))


@routes.post("/upgrade/{backend:path}", responses=gives(JobReply, 401, 404, 409))
async def upgrade_backend(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have the newest version on every node that has the backend."""
    accepted = await ask(svc, Kind.UPGRADE, Source(backend), admin)
    return answer(job(accepted, "backend upgrade started", uuid=True, status=True))


def upgrade_items(found: Mapping[str, Upgrade]) -> UpgradeItems:
    return UpgradeItems({name: upgrade_item(upgrade) for name, upgrade in sorted(found.items())})


def upgrade_item(upgrade: Upgrade) -> UpgradeItem:
    return UpgradeItem(
        backend_name=upgrade.backend,
        installed_version=upgrade.installed_version,
        available_version=upgrade.available_version,
        installed_digest=upgrade.installed_digest,
        available_digest=upgrade.available_digest,
        node_drift=tuple(
            DriftedNode(
                node_id=one.standing.node.id,
                node_name=one.standing.node.name,
                version=one.artifact.version,
                digest=one.artifact.digest,
            )
            for one in upgrade.drift
        ),
    )


# On one node.

node_routes = APIRouter(
    prefix="/api/nodes/{node_id}/backends", tags=["nodes"], dependencies=[Depends(require_admin)]
)


@node_routes.get("", responses=gives(InstalledBackends, 401, 404))
async def backends_of_node(node_id: NodePath, svc: Svc) -> Response:
    """What the node has installed, as it last reported."""
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


@node_routes.post(
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


@node_routes.post(
    "/upgrade",
    status_code=202,
    openapi_extra=takes(NodeBackendBody),
    responses=gives(JobReply, 400, 401, 404, 409, status=202),
)
async def upgrade_on_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Have the newest version of a backend that is there."""
    accepted = await on_node(svc, Kind.UPGRADE, await _named(request), admin, node_id)
    return answer(job(accepted, "backend upgrade started", status=True), 202)


@node_routes.post(
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


# At the paths that older clients use.

older_routes = APIRouter(prefix="/backends", tags=["backends"], dependencies=[Depends(require_admin)])


@older_routes.get("", responses=gives(InstalledItems, 401))
async def installed_backends(svc: Svc) -> Response:
    """What nodes have installed."""
    return answer(InstalledItems((await look(svc)).installed()))


@older_routes.get("/available", responses=gives(BackendItems, 401))
async def available_backends(svc: Svc) -> Response:
    """What galleries offer."""
    return answer(BackendItems((await look(svc)).available()))


@older_routes.post(
    "/apply",
    openapi_extra=takes(ApplyBody),
    responses={**gives(ApplyReply, 400, 401, 404), **CONCRETE},
)
async def apply_backend(request: Request, svc: Svc, admin: Admin) -> Response:
    """Have a backend on every node that can run it."""
    body = await read(request, ApplyBody)
    if not body.id:
        raise Invalid("id: must not be empty")
    return await _asked(svc, Kind.INSTALL, body.id, admin)


@older_routes.post("/delete/{backend:path}", responses=gives(ApplyReply, 401, 404, 409))
async def delete_everywhere(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have a backend on no node."""
    return await _asked(svc, Kind.REMOVE, backend, admin)


@older_routes.get("/jobs/{op_id}", responses=gives(GalleryStatus, 401, 404))
async def raw_job_status(op_id: OpPath, svc: Svc) -> Response:
    """A job's status as frontends send it to each other."""
    operations = svc.ops.operations
    return answer(op_views.raw_status(await operations.view(op_id), operations.now()))


@older_routes.get("/upgrades", responses=gives(UpgradeItems, 401))
async def possible_upgrades(svc: Svc) -> Response:
    """What could be upgraded."""
    return answer(upgrade_items((await svc.ops.upgrades.current()).upgrades))


@older_routes.post("/upgrade/{backend:path}", responses=gives(JobReply, 401, 404, 409))
async def upgrade_everywhere(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have the newest version on every node that has the backend."""
    accepted = await ask(svc, Kind.UPGRADE, Source(backend), admin)
    return answer(job(accepted, "backend upgrade started", uuid=True, status=True))


async def _asked(svc: Services, kind: Kind, backend: str, by: str) -> Response:
    op = (await ask(svc, kind, Source(backend), by)).view.operation.id
    return answer(ApplyReply(id=op, status_url=f"/backends/jobs/{op}"))
