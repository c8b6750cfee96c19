"""ASGI's own shapes, and answers in plain text."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name, as it was sent."""
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return found


def raw_path(scope: Scope) -> str:
    """The path with its escapes as they were sent: in an id that was escaped as a whole, a slash is a part of
    it, where `path` no longer shows the difference."""
    sent: bytes = scope["raw_path"]
    return sent.decode("latin-1")


async def answer(
    scope: Scope, send: Send, status: int, body: str, kind: bytes = TEXT, more: Iterable[Header] = ()
) -> None:
    """The whole answer, also to a request for a WebSocket, which is thereby refused."""
    content = body.encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content)), *more]
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": content, "more_body": False})


async def refuse_method(scope: Scope, send: Send, allowed: bytes) -> None:
    await answer(scope, send, 405, "method not allowed", more=[(b"allow", allowed)])
