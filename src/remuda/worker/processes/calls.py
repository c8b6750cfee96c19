"""Calls to backends on this machine: health checks, and freeing memory. Bounded, and none raises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

import anyio
import grpc
import grpc.aio
from anyio.lowlevel import checkpoint_if_cancelled

from remuda.rpc import backend_pb2, backend_pb2_grpc
from remuda.worker.processes.model import USUAL, BackendTimeouts, Protocol, Recipe

_HOST = "127.0.0.1"
_PROBE_S = 0.5
_FAREWELL_S = 0.1
_HEAD_BYTES_MAX = 8192
_WORDS_CHARS_MAX = 200
_CHANNEL_OPTIONS = (
    # Channels to one address share its connection, and the pause after a refused one, unless told not to.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class HealthResult:
    """How a backend took a health call. `refused`: nothing listens, so it is not merely busy."""

    healthy: bool = False
    refused: bool = False
    words: str = ""


class BackendCalls:
    """`Backends` on loopback. Each gRPC backend is called with the token that it was started with."""

    def __init__(self, timeouts: BackendTimeouts = USUAL) -> None:
        self._health_s, self._free_s = timeouts.call.total_seconds(), timeouts.free.total_seconds()

    async def health(self, port: int, recipe: Recipe) -> HealthResult:
        match recipe.protocol:
            case Protocol.GRPC:
                return await self._grpc_health(port, recipe)
            case Protocol.HTTP:
                return await _http_health(port, recipe.health_path, self._health_s)
        assert_never(recipe.protocol)

    async def free(self, port: int, recipe: Recipe) -> str:
        """Empty when it let go of its memory, else why not."""
        if recipe.protocol is Protocol.HTTP:
            return "HTTP backends have no such call"
        try:
            async with _backend(port) as backend:
                result = await backend.Free(
                    backend_pb2.HealthMessage(), timeout=self._free_s, metadata=_metadata(recipe)
                )
        except grpc.aio.AioRpcError as error:
            return (await _trouble(error, port, self._free_s)).words
        # Many say neither yes nor why not: no error is a yes, as LocalAI reads it.
        return "" if result.success else _short(result.message)

    async def _grpc_health(self, port: int, recipe: Recipe) -> HealthResult:
        if await _nothing_listens(port):  # Told at a tenth of the price of a call.
            return _refused(port)
        try:
            async with _backend(port) as backend:
                reply = await backend.Health(
                    backend_pb2.HealthMessage(), timeout=self._health_s, metadata=_metadata(recipe)
                )
        except grpc.aio.AioRpcError as error:
            return await _trouble(error, port, self._health_s)
        if reply.message == b"OK":
            return HealthResult(healthy=True)
        return HealthResult(
            words=f"its health call answers {_short(reply.message.decode(errors='replace'))!r}"
        )


def _metadata(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {recipe.token}"),) if recipe.token else ()


@asynccontextmanager
async def _backend(port: int) -> "AsyncIterator[backend_pb2_grpc.BackendStub]":
    """With a connection of its own: one that is kept would wait before it tries a refused port again."""
    async with grpc.aio.insecure_channel(f"ipv4:{_HOST}:{port}", options=_CHANNEL_OPTIONS) as channel:
        try:
            yield backend_pb2_grpc.BackendStub(channel)
        except asyncio.CancelledError:
            # gRPC raises one of its own making, which no scope would take for its own; this raises the real.
            await checkpoint_if_cancelled()
            raise


async def _trouble(error: grpc.aio.AioRpcError, port: int, limit_s: float) -> HealthResult:
    details = _short(error.details() or "")
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if await _nothing_listens(port):
            return _refused(port)
        case grpc.StatusCode.UNAVAILABLE:
            return HealthResult(words=f"what listens on port {port} does not speak gRPC: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return _silent(port, limit_s)
        case grpc.StatusCode.UNAUTHENTICATED:
            return HealthResult(words=f"it does not accept this worker's token: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return HealthResult(words="it has no such call")
        case code:
            return HealthResult(words=f"it answers {code.name}: {details}")


async def _http_health(port: int, path: str, limit_s: float) -> HealthResult:
    try:
        with anyio.fail_after(limit_s):
            line = await _status_line(port, path)
    except TimeoutError:
        return _silent(port, limit_s)
    except ConnectionRefusedError:
        return _refused(port)
    except (OSError, ValueError) as error:  # ValueError: a line without an end.
        return HealthResult(words=f"what listens on port {port} does not speak HTTP: {_short(str(error))}")
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        return HealthResult(words=f"what listens on port {port} does not speak HTTP")
    if words[1] == "200":
        return HealthResult(healthy=True)
    return HealthResult(words=f"GET {path} answers {_short(' '.join(words[1:]))}")


async def _status_line(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection(_HOST, port, limit=_HEAD_BYTES_MAX)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {_HOST}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        line = await reader.readline()
        with anyio.move_on_after(
            _FAREWELL_S
        ):  # Some servers log an error when the response is not read to its end.
            while await reader.read(_HEAD_BYTES_MAX):
                pass
    finally:
        writer.close()
    return line.decode("latin-1").strip()


async def _nothing_listens(port: int) -> bool:
    try:
        with anyio.move_on_after(_PROBE_S):
            _, writer = await asyncio.open_connection(_HOST, port)
            writer.close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _refused(port: int) -> HealthResult:
    return HealthResult(refused=True, words=f"nothing listens on port {port}")


def _silent(port: int, limit_s: float) -> HealthResult:
    return HealthResult(words=f"no answer on port {port} within {limit_s:g} s")


def _short(text: str) -> str:
    return text[:_WORDS_CHARS_MAX]
