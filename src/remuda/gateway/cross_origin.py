"""Web pages of chosen origins may call every API here with a key (CORS). The console's cookie opens nothing
for them, and other pages get no answer they can read.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remuda.gateway.server import HeaderPairs

ANY: Final = "*"
HEADERS: Final = "remuda.cross_origin"
"""In a request's scope: what its answer says to the page, for answers that pass no ASGI `send`."""
_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_KEPT_S: Final = b"600"
_EXPOSED: Final = b", ".join(
    (
        *(b"retry-after", b"x-should-retry", b"x-request-id", b"request-id", b"x-remuda-node", b"etag"),
        *(b"location", b"upload-offset", b"upload-length", b"tus-resumable"),
        *(
            b"x-ratelimit-%s-%s" % (what, of)
            for of in (b"requests", b"tokens")
            for what in (b"limit", b"remaining", b"reset")
        ),
        *(
            b"anthropic-ratelimit-%s-%s" % (of, what)
            for of in (b"requests", b"tokens")
            for what in (b"limit", b"remaining", b"reset")
        ),
    )
)


class CrossOrigin:
    """Stands before everything. `origins`: as browsers write them, or ANY."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        if not self._chosen(origin, headers.get(b"host", b"")):
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _preflight(headers, origin, send)
            return
        told = ((b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), _VARY)
        passed = [pair for pair in scope["headers"] if pair[0] not in (b"origin", b"cookie")]
        await self._app({**scope, "headers": passed, HEADERS: told}, receive, _telling(told, send))

    def _chosen(self, origin: bytes, host: bytes) -> bool:
        """Not for pages of this frontend itself, which is the console."""
        text = origin.decode("latin-1").lower()
        if not text or text.partition("://")[2] == host.decode("latin-1").lower():
            return False
        return ANY in self._origins or text in self._origins


_VARY: Final = (b"vary", b"Origin")


def _telling(told: HeaderPairs, send: Send) -> Send:
    async def passed_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(name == told[0][0] for name, _ in headers):
                message = {**message, "headers": [*headers, *told]}
        await send(message)

    return passed_on


async def _preflight(headers: dict[bytes, bytes], origin: bytes, send: Send) -> None:
    """What a browser asks before it sends what a form could not send."""
    answer = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _KEPT_S),
        _VARY,
    ]
    if wanted := headers.get(b"access-control-request-headers"):
        answer.append((b"access-control-allow-headers", wanted))
    if headers.get(b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
