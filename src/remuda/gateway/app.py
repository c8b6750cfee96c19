"""Builds the ASGI application from a Services record."""

from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable
from remuda.gateway import join, nodes, probes
from remuda.gateway.admin import keys as admin_keys
from remuda.gateway.admin import nodes as admin_nodes
from remuda.gateway.body_limit import BodyLimit
from remuda.gateway.guards import HostGuard, TokenRefused
from remuda.gateway.messages import answer, refusal
from remuda.gateway.observation import Observation
from remuda.gateway.services import Services
from remuda.wire import nodes as wire

log = structlog.get_logger()
_BODIES: tuple[type[BaseModel], ...] = (
    wire.RegisterRequest,
    wire.Heartbeat,
    wire.Labels,
    wire.VramBudgetBody,
    wire.MaxReplicasBody,
    admin_keys.KeyRequest,
)


def api(services: Services) -> FastAPI:
    """The routes, their error envelopes and the OpenAPI document, without the layers around them."""
    app = FastAPI(
        title="Remuda", version=services.version, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.services = services
    for routes in (nodes.routes, admin_nodes.routes, admin_keys.routes, probes.routes, join.routes):
        app.include_router(routes)
    app.add_exception_handler(RemudaError, _expected)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(Exception, _bug)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it.
    return app


def application(services: Services, clock: Clock) -> ASGIApp:
    guarded = HostGuard(BodyLimit(api(services)), services)
    return Observation(guarded, services.metrics, clock)


async def _expected(_: Request, error: Exception) -> Response:
    if isinstance(error, TokenRefused):
        return answer(error.answer, error.http_status)
    assert isinstance(error, RemudaError)
    headers = {"Retry-After": "5"} if isinstance(error, Unavailable) else {}
    return refusal(error.http_status, str(error), headers)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, str(error.detail), error.headers)


async def _unreadable(_: Request, error: Exception) -> Response:
    """Path and query parameters; bodies are read by our own codec."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    return refusal(400, f"{'.'.join(str(part) for part in found['loc'][1:])}: {found['msg']}")


async def _bug(request: Request, error: Exception) -> Response:
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    return refusal(500, "internal error; the frontend's log has the details")


def _document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, with the bodies that our codec reads. (The document is JSON: hence Any.)"""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in _BODIES:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        app.openapi_schema = document
    return app.openapi_schema
