"""One canonical log line and one set of figures per request."""

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remuda.core.clock import Clock
from remuda.gateway.metrics import Metrics

log = structlog.get_logger()
_QUIET = frozenset({"/api/node/{node_id}/heartbeat", "/healthz", "/readyz", "/metrics"})


class Observation:
    """Outermost: what the guards refuse is counted too."""

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
        # The template, never the path: ids and whatever a stranger typed must not become label values.
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if route != "unknown" else "ANY"
        self._metrics.request_answered(method, route, status, seconds)
        note = log.debug if route in _QUIET and status < 400 else log.info
        note("request_answered", method=method, route=route, status=status, ms=round(seconds * 1000, 2))
