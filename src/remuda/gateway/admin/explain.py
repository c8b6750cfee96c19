"""Why a request went where it did."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from remuda.core.errors import NotFound
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import answer, gives
from remuda.gateway.services import Svc
from remuda.router.decisions import KEPT_MAX
from remuda.wire.explanations import RequestExplanation

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])


@routes.get("/api/requests/{request_id:path}/explanation", responses=gives(RequestExplanation, 401, 404))
async def explain_request(request_id: Annotated[str, Path(max_length=128)], svc: Svc) -> Response:
    """Why a request that is over went to its node, how long it waited and for what, whichever frontend has
    answered it."""
    explanations = svc.inference.explanations
    found = None if explanations is None else await explanations.find(request_id)
    if found is None:
        raise NotFound(
            f"no frontend knows a request {request_id!r}",
            hint=f"each keeps its last {KEPT_MAX:,} requests since its start, when they are over; the id is "
            "in the header X-Request-Id of the answer",
        )
    return answer(found)
