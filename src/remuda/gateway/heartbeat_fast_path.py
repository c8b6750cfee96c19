"""A fast path for heartbeats, the most frequent request: a thousand nodes send a hundred a second. It ends
in the same guard and the same function as the route, and skips the routing.

It leads to the same guard and the same function as the route, past all that finds them.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.core.ids import NodeId
from remuda.gateway import nodes
from remuda.gateway.guards import node_caller
from remuda.gateway.services import Services

_PATH: Final = re.compile(r"/api/node/([0-9A-Za-z_-]+)/heartbeat")  # Ids as they are given out.
_ROUTE: Final = next(
    route
    for route in nodes.routes.routes
    if isinstance(route, APIRoute) and route.endpoint is nodes.heartbeat
)

Failed = Callable[[Request, Exception], Awaitable[Response]]


class HeartbeatLane:
    """Everything else passes on to `app`. `failed` makes answers of exceptions, as it does for all routes."""

    def __init__(self, app: ASGIApp, services: Services, failed: Failed) -> None:
        self._app = app
        self._services = services
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beating = scope["type"] == "http" and scope["method"] == "POST" and _PATH.fullmatch(scope["path"])
        if not beating:
            await self._app(scope, receive, send)
            return
        scope["route"] = _ROUTE  # For the figures.
        request = Request(scope, receive)
        try:
            caller = await node_caller(request, self._services)
            response = await nodes.heartbeat(NodeId(beating[1]), request, self._services, caller)
        except Exception as error:
            response = await self._failed(request, error)
        await response(scope, receive, send)
