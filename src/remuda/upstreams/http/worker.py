"""Asks a worker's own HTTP server which processes it runs."""

from typing import Final

import anyio

from remuda.core import limits
from remuda.core.errors import Invalid, NodeUnreachable, TooLarge
from remuda.core.reach import host_and_port
from remuda.inference.failures import UpstreamFailed
from remuda.inference.model import ReplicaEndpoint
from remuda.upstreams.http.client import Pool, ServerAddress, body_of
from remuda.wire.codec import PAYLOAD_BYTES_MAX, decode
from remuda.wire.models import ModelsRunningReply
from remuda.wire.process_keys import RUNNING_PATH

_HEALTH_PATH: Final = "/healthz"
_OK: Final = 200
_MISSING: Final = 404


class HttpWorker:
    """Implements scheduler.ports.WorkerHttp."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def running(self, server: ReplicaEndpoint) -> ModelsRunningReply | None:
        try:
            with anyio.fail_after(limits.CONFIRMATION_S):
                status, body = await self._get(server, RUNNING_PATH)
        except TimeoutError:
            raise _unreachable(server, f"no answer within {limits.CONFIRMATION_S:g} s") from None
        except UpstreamFailed as error:
            raise _unreachable(server, error.message) from error
        if status == _MISSING:
            return None
        if status != _OK:
            raise _unreachable(server, f"HTTP status {status}")
        try:
            return decode(ModelsRunningReply, body)
        except (Invalid, TooLarge) as error:
            raise _unreachable(server, error.message) from error

    async def answers(self, server: ReplicaEndpoint) -> bool:
        with anyio.move_on_after(limits.CONFIRMATION_S):
            try:
                await self._get(server, _HEALTH_PATH)
            except (UpstreamFailed, NodeUnreachable):
                return False
            return True
        return False

    async def _get(self, server: ReplicaEndpoint, path: str) -> tuple[int, bytes]:
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {server.address}",
            *((f"Authorization: Bearer {server.token}",) if server.token else ()),
        )
        head = "\r\n".join((*lines, "", "")).encode()
        answer = await self._pool.exchange(_address(server), head, b"")
        try:
            # Of one that is too long a little more comes, which the codec refuses.
            return answer.status, await body_of(answer, PAYLOAD_BYTES_MAX)
        finally:
            self._pool.release(answer)


def _address(server: ReplicaEndpoint) -> ServerAddress:
    parts = host_and_port(server.address)
    if parts is None:
        raise _unreachable(server, "not a HOST:PORT address")
    return ServerAddress(*parts)


def _unreachable(server: ReplicaEndpoint, why: str) -> NodeUnreachable:
    return NodeUnreachable(f"the worker's HTTP server at {server.address} cannot be asked: {why}")
