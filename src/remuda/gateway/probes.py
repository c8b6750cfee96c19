"""Liveness, readiness and metrics of this frontend."""

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from remuda.gateway.guards import is_admin, require_admin
from remuda.gateway.messages import answer, gives_raw, one_of, refuses
from remuda.gateway.services import Svc
from remuda.wire.admin import Unready, UnreadyPart

routes = APIRouter(tags=["probes"])


@routes.get("/healthz", response_class=Response, responses=refuses())
async def healthz() -> Response:
    """The process runs."""
    return Response()


@routes.get("/readyz", response_class=Response, responses=refuses() | {503: one_of(Unready)})
async def readyz(request: Request, svc: Svc) -> Response:
    """Store and bus answer; otherwise 503 and which does not."""
    found = await svc.troubles()
    if not found:
        return Response()
    admin = is_admin(request, svc)
    parts = tuple(
        UnreadyPart(part=one.part, reason=one.for_admins if admin else one.public, code=one.code)
        for one in found
    )
    reason = "; ".join(one.reason for one in parts)
    return answer(Unready(reason=reason, code=found[0].code, parts=parts), 503)


@routes.get(
    "/metrics",
    response_class=Response,
    responses=gives_raw("text/plain", 401),
    dependencies=[Depends(require_admin)],
)
async def metrics(svc: Svc) -> Response:
    """Prometheus text format."""
    await svc.troubles()  # Looks at store and bus, so that their figures are of now.
    return Response(svc.metrics.rendered(), media_type=CONTENT_TYPE_LATEST)
