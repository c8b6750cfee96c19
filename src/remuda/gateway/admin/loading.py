"""The progress of a model's load, for all who may use the model, not only administrators."""

from fastapi import APIRouter, Response

from remuda.core.errors import Forbidden
from remuda.gateway import model_views as show
from remuda.gateway.guards import Caller
from remuda.gateway.messages import answer, gives
from remuda.gateway.paths import ModelPath
from remuda.gateway.services import Svc
from remuda.wire.nodes import NodeError, NodeErrorDetail
from remuda.wire.serving import LoadingView

routes = APIRouter(tags=["models"])


@routes.get("/api/models/{model:path}/load-status", responses=gives(LoadingView, 401, 404))
async def load_status(model: ModelPath, svc: Svc, caller: Caller) -> Response:
    """How far its load is, or that it has just failed; 404 when none is under way."""
    if caller is not None and caller.models and model not in caller.models:
        raise Forbidden(f"the key {caller.name!r} is not for the model {model!r}")
    status = await svc.serving.load_status(model)
    if status is None:
        words = f"{model} is not being loaded"
        return answer(NodeError(error=NodeErrorDetail(code=404, message=words, type="not_found_error")), 404)
    return answer(show.loading_view(status))
