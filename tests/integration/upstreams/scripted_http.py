"""An HTTP server on a real socket that does what a test tells it to, well or badly; and a client's end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from remuda.core.clock import SystemClock
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.inference.requests import ChatRequest
from remuda.models.config import ModelConfig
from remuda.upstreams.http.client import HttpTimeouts, Pool
from remuda.upstreams.http.upstream import HttpUpstream
from tests.support.answer_sinks import RelayedClient

Script = Callable[[SocketStream], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"id":"1","model":"m","choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
_HEAD_BYTES_MAX = 65536


class HangUp(Exception):
    """A script closes the connection."""


@dataclass(slots=True)
class Request:
    head: str
    body: bytes


@dataclass(slots=True)
class ScriptedServer:
    script: Script
    address: str = ""
    requests: list[Request] = field(default_factory=list)
    opened: int = 0
    open: int = 0

    async def converse(self, stream: SocketStream) -> None:
        self.opened += 1
        self.open += 1
        try:
            async with stream:
                arriving = BufferedByteReceiveStream(stream)
                while True:
                    self.requests.append(await _request(arriving))
                    await self.script(stream)
        except (HangUp, anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            pass
        finally:
            self.open -= 1


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(script)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server.address = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.converse)
        yield server
        tasks.cancel_scope.cancel()


async def _request(arriving: BufferedByteReceiveStream) -> Request:
    head = (await arriving.receive_until(b"\r\n\r\n", _HEAD_BYTES_MAX)).decode()
    length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length:"))
    return Request(head, await arriving.receive_exactly(int(length.partition(":")[2])))


# What servers say.


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
        + body
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def says(*parts: bytes, hang_up: bool = False) -> Script:
    async def script(stream: SocketStream) -> None:
        for part in parts:
            await stream.send(part)
        if hang_up:
            raise HangUp

    return script


def says_and_hangs(*parts: bytes) -> Script:
    """Until the caller leaves."""

    async def script(stream: SocketStream) -> None:
        for part in parts:
            await stream.send(part)
        await stream.receive()

    return script


# Who asks.


@dataclass
class Notebook(RelayedClient):
    """Also tells when something came."""

    arrived: anyio.Event = field(default_factory=anyio.Event)

    async def write(self, data: bytes) -> None:
        await super().write(data)
        self.arrived.set()


def chat(*, stream: bool = False, model: str = "m", body: bytes | None = None) -> InferenceCall:
    body = body if body is not None else b'{"model":"%s","messages":[]}' % model.encode()
    request = ChatRequest(model=model, messages=[], stream=stream)
    return InferenceCall(RequestKind.CHAT, request, body, ModelConfig(name="m"), request_id="r", created=0)


@asynccontextmanager
async def opened_pool(timeouts: HttpTimeouts | None = None) -> AsyncIterator[Pool]:
    pool = Pool(timeouts)
    try:
        yield pool
    finally:
        pool.close()


def upstream_at(server: ScriptedServer, pool: Pool) -> HttpUpstream:
    path = "/v1/processes/m%230"
    endpoint = ReplicaEndpoint(server.address, "http", path, token="s3cret")
    return HttpUpstream(endpoint, pool, SystemClock())
