"""Requests to backends that have arrived whole, as nearly all do that ask a model something: they are passed
on without a task of their own, by connections of the kind that frontends use, which takes a fraction of what
a client takes that can stream both ways at once.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from remuda.core import limits
from remuda.inference.failures import UpstreamFailed
from remuda.upstreams.http.client import HttpConnection, HttpTimeouts, Pool, ServerAddress
from remuda.wire.process_keys import ProcessKey
from remuda.worker.http.proxied import end_broken, forwarded, refuse_unheard, returned, taken
from remuda.worker.http.server import AsgiSend, Scope, header, line_of

_HOST: Final = "127.0.0.1"
_TIMEOUTS: Final = HttpTimeouts(
    connect_s=limits.DOOR_CONNECT_S,
    whole_s=limits.DOOR_SILENCE_S,
    silence_s=limits.DOOR_SILENCE_S,
    idle_s=limits.DOOR_IDLE_S,
    idle_max=limits.DOOR_CONNECTIONS_MAX,
)


class BackendTarget(NamedTuple):
    """`target`: the path with its query, as they were sent."""

    key: ProcessKey
    port: int
    target: str


class ShortRequests:
    def __init__(self) -> None:
        self._pool = Pool(_TIMEOUTS, peer="the process", asks_again=False)

    def close(self) -> None:
        self._pool.close()

    def takes(self, scope: Scope) -> bool:
        """Whether the request may go this way, should its body arrive whole."""
        if scope["method"] != "POST" or self._pool.busy >= limits.DOOR_CONNECTIONS_MAX:
            return False
        return header(scope, b"content-length") is not None

    async def pass_on(self, target: BackendTarget, scope: Scope, body: bytes, send: AsgiSend) -> None:
        """When the caller leaves, this task is cancelled, and the request with it."""
        line, task, caller = line_of(scope), asyncio.current_task(), _Caller()
        assert task is not None
        line.watch(lambda: caller.leave(task.cancel))
        try:
            await self._exchange(target, scope, body, send)
        except asyncio.CancelledError:
            if not caller.gone or task.uncancel():
                raise
        finally:
            line.when_lost = None

    async def _exchange(self, target: BackendTarget, scope: Scope, body: bytes, send: AsgiSend) -> None:
        address, answer = ServerAddress(_HOST, target.port), None
        try:
            answer = await self._pool.exchange(address, _head(target, scope), body)
            await _return(answer, scope, send)
        except UpstreamFailed as failed:
            if failed.unprocessed:
                await refuse_unheard(target.key, failed, scope, send)
            else:
                begun = answer is not None
                await end_broken(target.key, failed, failed.__cause__, scope, send, begun=begun)
        finally:
            if answer is not None:
                self._pool.release(answer)


class _Caller:
    gone = False

    def leave(self, stop: Callable[[], object]) -> None:
        self.gone = True
        stop()


async def _return(answer: HttpConnection, scope: Scope, send: AsgiSend) -> None:
    headers = returned(answer.raw_headers)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    while piece := await answer.piece():
        if not await taken(piece, scope, send):
            return
    await send({"type": "http.response.body"})


def _head(target: BackendTarget, scope: Scope) -> bytes:
    lines = [f"POST {target.target} HTTP/1.1\r\nhost: {_HOST}:{target.port}".encode("latin-1")]
    lines += [b"%b: %b" % line for line in forwarded(scope["headers"])]
    return b"\r\n".join((*lines, b"", b""))
