"""A reverse proxy to backends that speak HTTP: they listen on loopback, and callers with the token reach
them here.

Bytes pass as they come, both ways, at the pace of the slower side. When the caller leaves, the request ends;
when the backend breaks off, so does the answer. Nothing is ever sent twice.

ANY /v1/processes/{process key, escaped}/{path of the backend}
"""

import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote

import aiohttp
import anyio
import structlog
from anyio.lowlevel import checkpoint_if_cancelled
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from multidict import CIMultiDict
from yarl import URL

from remuda.core import limits
from remuda.core.errors import BackendFailed, NotFound, Unavailable
from remuda.wire.process_keys import PROCESSES_PATH, ProcessKey
from remuda.worker.http.server import AsgiReceive, AsgiSend, HeaderLine, Scope, cut, raw_path, refuse

log = structlog.get_logger(__name__)

REFUSAL_HEADER: Final = b"x-remuda-refusal"
"""Tells our own answers from those of a backend: `not_ready` or `backend_failed`."""

UNREAD_HEADER: Final = b"x-remuda-unread"
"""Beside `backend_failed`: the backend hung up before it had read all of the request."""

# Each of them is about one connection, not about the request.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"authorization", b"expect", b"host"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date"}  # The server sets one.
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)
_PATIENCE: Final = aiohttp.ClientTimeout(
    total=None, connect=limits.DOOR_CONNECT_S, sock_read=limits.DOOR_SILENCE_S
)

Find = Callable[[ProcessKey], int | None]


@asynccontextmanager
async def open_door(find: Find) -> "AsyncIterator[BackendProxy]":
    """`find` gives the port of a process while it is ready."""
    connector = aiohttp.TCPConnector(limit=limits.DOOR_CONNECTIONS_MAX, keepalive_timeout=limits.DOOR_IDLE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        timeout=_PATIENCE,
    ) as session:
        yield BackendProxy(session, find)


class BackendProxy:
    """Opened by `open_door`. An ASGI application for the paths below PROCESSES_PATH."""

    def __init__(self, session: aiohttp.ClientSession, find: Find) -> None:
        self._session = session
        self._find = find

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        name, _, path = raw_path(scope).removeprefix(PROCESSES_PATH).partition("/")
        key = ProcessKey.parse(unquote(name))
        if key is None or scope["type"] != "http":
            await refuse(scope, send, NotFound("no such process: its key is MODEL#REPLICA, URL-encoded"))
            return
        port = self._find(key)
        if port is None:
            not_ready = Unavailable(f"the process {key} is not ready on this worker")
            await refuse(scope, send, not_ready, [(REFUSAL_HEADER, b"not_ready")])
            return
        query = scope["query_string"].decode("latin-1")
        url = URL(f"http://127.0.0.1:{port}/{path}{'?' if query else ''}{query}", encoded=True)
        await self._while_the_caller_stays(url, key, scope, receive, send)

    async def _while_the_caller_stays(
        self, url: URL, key: ProcessKey, scope: Scope, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        arriving, body = anyio.create_memory_object_stream[bytes](0)
        with arriving, body:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_listen, receive, arriving, tasks.cancel_scope)
                await self._exchange(url, key, scope, body, send)
                tasks.cancel_scope.cancel()

    async def _exchange(
        self,
        url: URL,
        key: ProcessKey,
        scope: Scope,
        body: MemoryObjectReceiveStream[bytes],
        send: AsgiSend,
    ) -> None:
        begun = False
        try:
            async with self._session.request(
                scope["method"],
                url,
                headers=_forwarded(scope["headers"]),
                data=body if _has_body(scope["headers"]) else None,
                allow_redirects=False,
            ) as response:
                begun = True
                await _pass_on(response, scope, send)
        except (
            aiohttp.ClientConnectorError
        ) as error:  # It has heard nothing, so the request may go elsewhere.
            log.warning("backend_refused_connection", process=str(key), error=repr(error))
            ended = Unavailable(f"the process {key} accepts no connections; it may have just ended")
            await refuse(scope, send, ended, [(REFUSAL_HEADER, b"not_ready")])
        except _BROKEN as error:
            log.warning("backend_broke_off", process=str(key), answer_begun=begun, error=repr(error))
            if not begun:
                silent = BackendFailed(f"the process {key} did not answer: {error or type(error).__name__}")
                unread = [(UNREAD_HEADER, b"1")] if _was_unread(error) else []
                await refuse(scope, send, silent, [(REFUSAL_HEADER, b"backend_failed"), *unread])
            # Else the answer stays unfinished, which cuts the connection: half of it must not look whole.


def _was_unread(error: Exception) -> bool:
    """A system resets a connection when its process leaves it with bytes unread, or gets more of them later;
    one whose process has read them all is closed in order."""
    return isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)


async def _listen(
    receive: AsgiReceive, arriving: MemoryObjectSendStream[bytes], scope: anyio.CancelScope
) -> None:
    """Hand over the body of the request, and end the exchange when the caller leaves."""
    while (message := await receive())["type"] != "http.disconnect":
        if message.get("body"):
            await arriving.send(message["body"])
        if not message.get("more_body"):
            arriving.close()
    scope.cancel()


async def _pass_on(response: aiohttp.ClientResponse, scope: Scope, send: AsgiSend) -> None:
    headers = _without(response.raw_headers, _NOT_RETURNED)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for chunk in response.content.iter_any():
        # A backend that never pauses leaves no other moment at which this can be ended.
        await checkpoint_if_cancelled()
        with anyio.move_on_after(limits.DOOR_STALL_S) as patience:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if patience.cancelled_caught:
            log.warning("caller_stalled", limit_s=limits.DOOR_STALL_S)
            cut(scope)
            return
    await send({"type": "http.response.body"})


def _forwarded(headers: Iterable[HeaderLine]) -> CIMultiDict[str]:
    kept = _without(headers, _NOT_FORWARDED)
    return CIMultiDict((name.decode("latin-1"), value.decode(errors="replace")) for name, value in kept)


def _without(headers: Iterable[HeaderLine], unwanted: frozenset[bytes]) -> list[HeaderLine]:
    lowered = [(name.lower(), value) for name, value in headers]
    named = {
        word.strip().lower() for name, value in lowered if name == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in lowered if name not in unwanted and name not in named]


def _has_body(headers: Iterable[HeaderLine]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )
