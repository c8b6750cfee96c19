"""Backends of the whole fleet: what there is, and jobs that install, upgrade and delete them everywhere."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Invalid, NotFound
from remuda.fleet.verdicts import why_no_target
from remuda.gallery.model import usecases
from remuda.gateway.admin.submitting import ask, job, wait_for
from remuda.gateway.backend_pages import BackendCatalogue, BackendQuery, fits
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import Responses, answer, gives, one_of, read, refuses, takes
from remuda.gateway.paths import BackendPath, OpPath
from remuda.gateway.services import Services, Svc
from remuda.ops import op_views
from remuda.ops.model import OF_BACKENDS, Kind, Source
from remuda.ops.ports import Filter
from remuda.ops.service import OperationRequest
from remuda.ops.upgrades import Upgrade
from remuda.wire.operations import (
    BackendFits,
    BackendsPage,
    BackendUsecases,
    DoneReply,
    DriftedNode,
    ExternalInstallBody,
    InstallConflict,
    JobReply,
    JobView,
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
    asked = OperationRequest(Kind.INSTALL, Source(backend), by=admin, concrete_for_all=True)
    accepted = await svc.ops.operations.submit(asked)
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
