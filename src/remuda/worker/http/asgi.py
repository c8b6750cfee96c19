"""ASGI types, and helpers for answers and errors."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from remuda.core.errors import RemudaError, WrongMethod
from remuda.wire.codec import encode
from remuda.wire.nodes import NodeError
from remuda.wire.process_keys import ROLE_HEADER, WORKER_ROLE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"
CODE_HEADER: Final = b"x-remuda-code"  # On every refusal: the code of the error.
_ROLE: Final[Header] = (ROLE_HEADER.encode(), WORKER_ROLE.encode())
_CONTRACT_PATHS: Final = ("/healthz", "/readyz", "/v1/backend-logs", "/v1/files")


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
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content)), _ROLE, *more]
    prefix = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": content, "more_body": False})


def of_contract(scope: Scope) -> bool:
    """Whether the path is one of LocalAI's workers, whose errors are plain text."""
    return raw_path(scope).startswith(_CONTRACT_PATHS)


async def refuse(scope: Scope, send: Send, error: RemudaError, more: Iterable[Header] = ()) -> None:
    """The error as frontends answer it, or as plain text where the contract has that."""
    told, status = error.problem(), error.http_status
    headers = [(CODE_HEADER, told.code.encode()), *more]
    if of_contract(scope):
        await answer(scope, send, status, error.public, more=headers)
    else:
        body = encode(NodeError.of(status, error.public_text, told.code, told.hint)).decode()
        await answer(scope, send, status, body, JSON, headers)


async def refuse_method(scope: Scope, send: Send, allowed: bytes) -> None:
    words = f"use {allowed.decode()} here"
    error = WrongMethod("method not allowed", hint="" if of_contract(scope) else words)
    await refuse(scope, send, error, [(b"allow", allowed)])
