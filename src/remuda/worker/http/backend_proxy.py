"""A reverse proxy to backends that speak HTTP: they listen on loopback, and callers with the token reach
them here.

Bytes pass as they come, both ways, at the pace of the slower side. When the caller leaves, the request ends;
when the backend breaks off, so does the answer. Nothing is ever sent twice. Requests that have arrived whole
go a shorter way (short_requests.py).

ANY /v1/processes/{process key, escaped}/{path of the backend}
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
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
from remuda.core.errors import NotFound, Unavailable
from remuda.wire.process_keys import PROCESSES_PATH, ProcessKey
from remuda.worker.http.proxied import REFUSAL_HEADER, end_broken, forwarded, refuse_unheard, returned, taken
from remuda.worker.http.server import AsgiMessage, AsgiReceive, AsgiSend, HeaderLine, Scope, raw_path, refuse
from remuda.worker.http.short_requests import BackendTarget, ShortRequests

log = structlog.get_logger(__name__)

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
        with closing(ShortRequests()) as short:
            yield BackendProxy(session, short, find)


class BackendProxy:
    """Opened by `open_door`. An ASGI application for the paths below PROCESSES_PATH."""

    def __init__(self, session: aiohttp.ClientSession, short: ShortRequests, find: Find) -> None:
        self._session = session
        self._short = short
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
        target = f"/{path}{'?' if query else ''}{query}"
        if self._short.takes(scope):
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if not message.get("more_body"):
                await self._short.pass_on(BackendTarget(key, port, target), scope, message["body"], send)
                return
            receive = _beginning_with(message, receive)
        url = URL(f"http://127.0.0.1:{port}{target}", encoded=True)
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
            await refuse_unheard(key, error, scope, send)
        except _BROKEN as error:
            await end_broken(key, error, error, scope, send, begun=begun)


def _beginning_with(first: AsgiMessage, receive: AsgiReceive) -> AsgiReceive:
    """With what was received already."""
    waiting = [first]

    async def from_the_first() -> AsgiMessage:
        return waiting.pop() if waiting else await receive()

    return from_the_first


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
    headers = returned(response.raw_headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for chunk in response.content.iter_any():
        # A backend that never pauses leaves no other moment at which this can be ended.
        await checkpoint_if_cancelled()
        if not await taken(chunk, scope, send):
            return
    await send({"type": "http.response.body"})


def _forwarded(headers: Iterable[HeaderLine]) -> CIMultiDict[str]:
    kept = forwarded(headers)
    return CIMultiDict((name.decode("latin-1"), value.decode(errors="replace")) for name, value in kept)


def _has_body(headers: Iterable[HeaderLine]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )
