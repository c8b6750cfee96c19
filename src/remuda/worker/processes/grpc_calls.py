"""Calls to backends that speak gRPC. Imported with the first of them, for the library takes some 7 MB."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from anyio.lowlevel import checkpoint_if_cancelled

from remuda.host.ports import LOOPBACK, nothing_listens
from remuda.rpc import backend_pb2, backend_pb2_grpc
from remuda.worker.processes.model import HealthResult, in_short

_CHANNEL_OPTIONS = (
    # Channels to one address share its connection, and the pause after a refused one, by default.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


async def health(port: int, token: str, limit_s: float) -> HealthResult:
    try:
        async with _backend(port) as backend:
            reply = await backend.Health(
                backend_pb2.HealthMessage(), timeout=limit_s, metadata=_metadata(token)
            )
    except grpc.aio.AioRpcError as error:
        return await _trouble(error, port, limit_s)
    if reply.message == b"OK":
        return HealthResult(healthy=True)
    return HealthResult(words=f"its health call answers {in_short(reply.message.decode(errors='replace'))!r}")


async def free(port: int, token: str, limit_s: float) -> str:
    """Empty when it let go of its memory, else why not."""
    try:
        async with _backend(port) as backend:
            result = await backend.Free(
                backend_pb2.HealthMessage(), timeout=limit_s, metadata=_metadata(token)
            )
    except grpc.aio.AioRpcError as error:
        return (await _trouble(error, port, limit_s)).words
    # Many say neither yes nor why not: no error is a yes, as LocalAI reads it.
    return "" if result.success else in_short(result.message)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


@asynccontextmanager
async def _backend(port: int) -> "AsyncIterator[backend_pb2_grpc.BackendStub]":
    """With a connection of its own: one that is kept would wait before it tries a refused port again."""
    async with grpc.aio.insecure_channel(f"ipv4:{LOOPBACK}:{port}", options=_CHANNEL_OPTIONS) as channel:
        try:
            yield backend_pb2_grpc.BackendStub(channel)
        except asyncio.CancelledError:
            # gRPC raises one of its own making, which no scope would take for its own; this raises the real.
            await checkpoint_if_cancelled()
            raise


async def _trouble(error: grpc.aio.AioRpcError, port: int, limit_s: float) -> HealthResult:
    details = in_short(error.details() or "")
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if await nothing_listens(port):
            return HealthResult.when_refused(port)
        case grpc.StatusCode.UNAVAILABLE:
            return HealthResult(words=f"what listens on port {port} does not speak gRPC: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return HealthResult.when_silent(port, limit_s)
        case grpc.StatusCode.UNAUTHENTICATED:
            return HealthResult(words=f"it does not accept this worker's token: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return HealthResult(words="it has no such call")
        case code:
            return HealthResult(words=f"it answers {code.name}: {details}")
