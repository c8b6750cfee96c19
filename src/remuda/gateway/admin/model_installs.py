"""Models by name or source: install and remove them, in our words and in the contract's."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import NotFound
from remuda.gateway.guards import Admin, is_own_user, require_admin
from remuda.gateway.messages import ModelPath, OpPath, answer, gives, one_of, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.model_installs.service import InstallRequest
from remuda.ops import op_views
from remuda.ops.op_views import with_steps
from remuda.ops.ports import Submitted
from remuda.wire.operations import JobReply, JobView, OpSubmitted
from remuda.wire.serving import ModelInstallBody, ModelThere

routes = APIRouter(prefix="/api/models", tags=["models"], dependencies=[Depends(require_admin)])


@routes.post(
    "/install",
    status_code=202,
    openapi_extra=takes(ModelInstallBody),
    responses={**gives(OpSubmitted, 400, 401, 404, 409, status=202), 200: one_of(ModelThere)},
)
async def install_model(request: Request, svc: Svc, admin: Admin) -> Response:
    """Have a model, by its name in a gallery or by its source. The same install under way is joined. 200: it
    was to be installed `if_missing`, and is there."""
    body = await read_known(request, ModelInstallBody)
    wanted = InstallRequest(
        body.model,
        body.name,
        admin,
        body.sha256,
        body.idempotency_key,
        body.variant,
        context_size=body.context_size,
        on_own_machine=is_own_user(request, svc),
    )
    if body.if_missing and (there := await svc.serving.installs.present(wanted)):
        return answer(ModelThere(model=there))
    submitted = await svc.serving.installs.install(wanted)
    operations = svc.ops.operations
    shown = with_steps(submitted.view, operations.now(), operations.board)
    return answer(OpSubmitted(operation=shown, joined=submitted.joined), 202)


@routes.post("/install/{model:path}", responses=gives(JobReply, 400, 401, 404, 409))
async def install_named(
    model: ModelPath,
    request: Request,
    svc: Svc,
    admin: Admin,
    variant: Annotated[str, Query(max_length=1024, description="Which of its variants.")] = "",
) -> Response:
    """The same, as the contract has it."""
    own = is_own_user(request, svc)
    wanted = InstallRequest(model, by=admin, variant=variant, on_own_machine=own)
    submitted = await svc.serving.installs.install(wanted)
    return answer(_job(submitted, "model installation started"))


@routes.post("/delete/{model:path}", responses=gives(JobReply, 401, 404, 409))
async def delete_model(model: ModelPath, svc: Svc, admin: Admin) -> Response:
    """Remove a model and what the fleet has brought for it, as the contract has it."""
    return answer(_job(await removed(model, svc, admin), "model deletion started"))


@routes.get("/job/{op_id}", responses=gives(JobView, 401, 404))
async def job_status(op_id: OpPath, svc: Svc) -> Response:
    """How far a job is. One that is not known counts as queued, as peers have it."""
    try:
        return answer(op_views.job(await svc.ops.operations.view(op_id)))
    except NotFound:
        return answer(op_views.UNKNOWN_JOB)


async def removed(model: str, svc: Services, admin: str, *, files: bool = False) -> Submitted:
    """It answers no request any more; its files go as the operation does."""
    found = await svc.serving.models.removable(model)
    submitted = await svc.serving.installs.remove(found.config.id, admin, files=files)
    with suppress(NotFound):  # The operation was quicker.
        await svc.serving.models.remove(found.config.id, admin)
    return submitted


def _job(submitted: Submitted, message: str) -> JobReply:
    op = submitted.operation.id
    return JobReply(jobID=op, uuid=op, statusUrl=f"/api/models/job/{op}", message=message)
