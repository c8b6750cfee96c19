"""The backend jobs at the paths that older clients use."""

from fastapi import APIRouter, Depends, Request, Response

from remuda.core.errors import Invalid
from remuda.gateway.admin.backends import CONCRETE, look, upgrade_items
from remuda.gateway.admin.submitting import ask, job
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import answer, gives, read, takes
from remuda.gateway.paths import BackendPath, OpPath
from remuda.gateway.services import Services, Svc
from remuda.ops import op_views
from remuda.ops.model import Kind, Source
from remuda.wire.broadcasts import GalleryStatus
from remuda.wire.operations import ApplyBody, ApplyReply, BackendItems, InstalledItems, JobReply, UpgradeItems

routes = APIRouter(prefix="/backends", tags=["backends"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(InstalledItems, 401))
async def installed_backends(svc: Svc) -> Response:
    """What nodes have installed."""
    return answer(InstalledItems((await look(svc)).installed()))


@routes.get("/available", responses=gives(BackendItems, 401))
async def available_backends(svc: Svc) -> Response:
    """What galleries offer."""
    return answer(BackendItems((await look(svc)).available()))


@routes.post(
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


@routes.post("/delete/{backend:path}", responses=gives(ApplyReply, 401, 404, 409))
async def delete_everywhere(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have a backend on no node."""
    return await _asked(svc, Kind.REMOVE, backend, admin)


@routes.get("/jobs/{op_id}", responses=gives(GalleryStatus, 401, 404))
async def raw_job_status(op_id: OpPath, svc: Svc) -> Response:
    """A job's status as frontends send it to each other."""
    operations = svc.ops.operations
    return answer(op_views.raw_status(await operations.view(op_id), operations.now()))


@routes.get("/upgrades", responses=gives(UpgradeItems, 401))
async def possible_upgrades(svc: Svc) -> Response:
    """What could be upgraded."""
    return answer(upgrade_items((await svc.ops.upgrades.current()).upgrades))


@routes.post("/upgrade/{backend:path}", responses=gives(JobReply, 401, 404, 409))
async def upgrade_everywhere(backend: BackendPath, svc: Svc, admin: Admin) -> Response:
    """Have the newest version on every node that has the backend."""
    accepted = await ask(svc, Kind.UPGRADE, Source(backend), admin)
    return answer(job(accepted, "backend upgrade started", uuid=True, status=True))


async def _asked(svc: Services, kind: Kind, backend: str, by: str) -> Response:
    op = (await ask(svc, kind, Source(backend), by)).view.operation.id
    return answer(ApplyReply(id=op, status_url=f"/backends/jobs/{op}"))
