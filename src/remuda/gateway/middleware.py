"""Middleware for every route: metrics and a log line, a bound on the body, and HEAD."""

import structlog
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import HeadTooLarge, TooLarge
from remuda.gateway.messages import refusal
from remuda.gateway.metrics import Metrics

log = structlog.get_logger()
_QUIET = frozenset({"/api/node/{node_id}/heartbeat", "/healthz", "/readyz", "/metrics", "console"})
HEAD_ONLY = "remuda.head_only"
OF_CONSOLE = "remuda.of_console"  # In the scope of a request for a file of the web console.
CONSOLE_ROUTE = "console"  # In place of the address of a view, or the name of a file.
_OWN_BOUNDS = ("PATCH", "/api/model-uploads/")  # Whose route reads its body piece by piece, to the disk.
_TOO_LARGE = f"the request body is larger than {limits.BODY_BYTES_MAX} bytes"


class HeadLikeGet:
    """HEAD is answered like GET. The server leaves the body out: it holds the scope that says HEAD. What
    would stream without end looks for `HEAD_ONLY`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        await self._app(scope, receive, send)


class RequestObserver:
    """One canonical log line and one set of figures per request; what guards refuse is counted too."""

    def __init__(self, app: ASGIApp, metrics: Metrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._record(scope, status, self._clock.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # Templates and known methods only: what a stranger typed must not become a label's value.
        method, path, route = "ANY", "unknown", scope.get("route")
        if OF_CONSOLE in scope:
            method, path = "GET", CONSOLE_ROUTE
        if isinstance(route, APIRoute):
            path = route.path_format
            method = scope["method"] if scope["method"] in (route.methods or ()) else method
        self._metrics.request_answered(method, path, status, seconds)
        note = log.debug if path in _QUIET and status < 400 else log.info
        note("request_answered", method=method, route=path, status=status, ms=round(seconds * 1000, 2))


class BodyLimit:
    """Refuses queries and bodies over the bound; bodies before they are read where the length is announced,
    else as they arrive."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["query_string"]) > limits.QUERY_BYTES_MAX:
            error = HeadTooLarge(f"the query is longer than {limits.QUERY_BYTES_MAX} bytes")
            await refusal(error, scope["path"])(scope, receive, send)
            return
        if scope["method"] == _OWN_BOUNDS[0] and scope["path"].startswith(_OWN_BOUNDS[1]):
            await self._app(scope, receive, send)
            return
        # The server has seen to it that this is a number.
        announced = next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
        if announced > limits.BODY_BYTES_MAX:
            await refusal(TooLarge(_TOO_LARGE), scope["path"])(scope, receive, send)
            return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > limits.BODY_BYTES_MAX:
                raise TooLarge(_TOO_LARGE)
            return message

        await self._app(scope, counted, send)
