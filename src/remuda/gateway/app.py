"""Builds the ASGI application from a Services record."""

import structlog
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from remuda.core.clock import Clock
from remuda.core.errors import Internal, Invalid, NoSuchEndpoint, RemudaError, WrongMethod
from remuda.core.field_errors import field_error
from remuda.gateway import home, model_files, nodes, openapi, probes
from remuda.gateway.admin import (
    backends,
    benchmarks,
    explain,
    model_edits,
    model_galleries,
    model_installs,
    model_uploads,
    models,
    node_disk,
    node_logs,
    operations,
    ops_api,
    scheduling,
    servers,
    usage,
)
from remuda.gateway.admin import keys as admin_keys
from remuda.gateway.admin import nodes as admin_nodes
from remuda.gateway.admin import session as admin_session
from remuda.gateway.client_apis import inference_routes
from remuda.gateway.cross_origin import CrossOrigin
from remuda.gateway.events import routes as event_stream
from remuda.gateway.guards import HostGuard, TokenRefused
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.messages import answer, refusal
from remuda.gateway.middleware import OF_CONSOLE, BodyLimit, HeadLikeGet, RequestObserver
from remuda.gateway.nodes import HeartbeatLane
from remuda.gateway.ollama import routes as ollama
from remuda.gateway.openai.errors import refusal as openai_refusal
from remuda.gateway.server import KnownPeer
from remuda.gateway.services import Services
from remuda.gateway.static_files import ConsolePage, ConsolePages, is_view
from remuda.ops.targets import ConcreteBackend
from remuda.wire.operations import ConcreteRefusal

log = structlog.get_logger()
_SOCKETS = "/ws/nodes/{node_id}/backend-logs/{model}"
# The busiest come first, as they are tried in this order.
_ROUTERS = (
    nodes.routes,
    model_files.routes,
    ollama.routes,
    models.load_status_routes,  # Before those for models, whose names may end in anything.
    model_edits.routes,
    model_galleries.routes,
    model_installs.routes,
    model_uploads.routes,
    benchmarks.routes,
    explain.routes,
    servers.routes,
    scheduling.routes,  # Before those for nodes, whose ids would take /api/nodes/scheduling and
    models.routes,  # /api/nodes/models.
    admin_nodes.routes,
    node_disk.routes,
    operations.routes,
    ops_api.event_routes,
    ops_api.routes,
    backends.routes,
    backends.node_routes,
    node_logs.routes,
    node_logs.sockets,
    backends.older_routes,
    admin_keys.routes,
    usage.routes,
    admin_session.routes,
    event_stream.routes,
    probes.routes,
    home.join_routes,
    openapi.routes,
    home.routes,
)


def application(services: Services, clock: Clock) -> ASGIApp:
    """The whole application: the routes, and the layers that requests pass. Those for inference pass none
    of them: they have a door of their own."""
    lane = HeartbeatLane(_api(services), services, _failed)
    guarded = HostGuard(BodyLimit(lane), services.access)
    general = HeadLikeGet(RequestObserver(guarded, services.metrics, clock))
    outer = ProxyHeadersMiddleware(general)  # type: ignore[arg-type]  # uvicorn has types of its own.
    known = KnownPeer(outer)  # type: ignore[arg-type]
    files = services.console.files
    page = RequestObserver(ConsolePage(files), services.metrics, clock)
    whole = ConsolePages(inference_routes(known, services, services.inference, clock), page)
    origins = services.access.origins
    return CrossOrigin(whole, origins) if origins else whole


def api_routes() -> list[APIRoute]:
    """Every route there is."""
    return [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _api(services: Services) -> FastAPI:
    app = FastAPI(
        title="Remuda",
        version=services.version,
        openapi_url=None,  # Ours is served by a route like the others.
        redirect_slashes=False,
    )
    app.state.services = services
    for routes in _ROUTERS:
        app.router.routes.extend(routes.routes)  # `include_router` would analyse each route a second time.
    app.add_api_websocket_route("/{path:path}", _no_such_socket)
    app.add_exception_handler(RemudaError, _expected)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    app.add_exception_handler(ClientDisconnect, _caller_left)
    app.add_exception_handler(Exception, _bug)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    """What is answered where no route of the application has been looked for."""
    handlers = ((RemudaError, _expected), (ClientDisconnect, _caller_left), (Exception, _bug))
    return await next(handle for kind, handle in handlers if isinstance(error, kind))(request, error)


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, RemudaError)
    if isinstance(error, TokenRefused):
        refused = answer(error.answer, error.http_status)
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused
    if isinstance(error, ConcreteBackend):
        return answer(ConcreteRefusal(error=str(error), meta_alternative=error.meta_alternative), 409)
    if error.public != error.message:
        log.warning("request_refused", code=error.code, reason=error.message)
    return refusal(error, request.scope["path"])


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 404 and (shown := _of_console(request)) is not None:
        return shown
    if error.status_code != 405:
        return refusal(NoSuchEndpoint(no_such_endpoint(path)), path)
    allowed = ", ".join(_methods(path))
    words = f"{request.method} does not work on this path; use one of {allowed}"
    return refusal(WrongMethod(words), path, {"Allow": allowed})


def _of_console(request: Request) -> Response | None:
    """One of the console's files, or its page for an address that no route has."""
    svc: Services = request.app.state.services
    file = svc.console.files.answer(request.scope["path"].lstrip("/"), request.headers)
    shown = svc.console.files.page(request.headers) if file is None and is_view(request) else file
    if shown is not None:
        request.scope[OF_CONSOLE] = True
    return shown


async def _no_such_socket(websocket: WebSocket) -> None:
    """Otherwise the server would hang up without a word."""
    path = websocket.scope["path"]
    error = NoSuchEndpoint(f"{no_such_endpoint(path)}; the only WebSocket is {_SOCKETS}")
    if path.startswith("/v1/"):
        told = openai_refusal(error)
        await websocket.send_denial_response(Response(told.body, told.status, media_type="application/json"))
        return
    await websocket.send_denial_response(refusal(error, path))


def _methods(path: str) -> list[str]:
    matching = [route for route in api_routes() if route.path_regex.match(path)]
    found = {method for route in matching for method in route.methods or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def _bad_parameter(request: Request, error: Exception) -> Response:
    """In the path or the query; bodies are read by our own codec."""
    assert isinstance(error, RequestValidationError)
    found: ErrorDetails = error.errors()[0]
    words = field_error({**found, "loc": tuple(found["loc"][1:])})
    return refusal(Invalid(words), request.scope["path"])


async def _caller_left(request: Request, error: Exception) -> Response:
    """In the middle of its own request. The client does not get this; it is counted."""
    return refusal(Invalid("the request ended before its body did"), request.scope["path"])


async def _bug(request: Request, error: Exception) -> Response:
    log.error("request_failed", method=request.method, path=request.scope["path"], exc_info=error)
    return refusal(Internal("internal error; the frontend's log has the details"), request.scope["path"])
