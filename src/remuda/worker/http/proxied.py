"""What is passed on between callers and backends that speak HTTP, what stays behind, and what callers are
told when there is no answer.
"""

import errno
from collections.abc import Iterable
from typing import Final

import anyio
import structlog

from remuda.core import limits
from remuda.core.errors import BackendFailed, Unavailable
from remuda.wire.process_keys import ProcessKey
from remuda.worker.http.server import AsgiSend, HeaderLine, Scope, cut, line_of, refuse

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


def forwarded(headers: Iterable[HeaderLine]) -> list[HeaderLine]:
    """Those of a request that the backend gets."""
    return _without(headers, _NOT_FORWARDED)


def returned(headers: Iterable[HeaderLine]) -> list[HeaderLine]:
    """Those of an answer that the caller gets."""
    return _without(headers, _NOT_RETURNED)


def _without(headers: Iterable[HeaderLine], unwanted: frozenset[bytes]) -> list[HeaderLine]:
    lowered = [(name.lower(), value) for name, value in headers]
    named = [value for name, value in lowered if name == b"connection"]
    if named:
        unwanted = unwanted.union(word.strip().lower() for value in named for word in value.split(b","))
    return [line for line in lowered if line[0] not in unwanted]


async def taken(chunk: bytes, scope: Scope, send: AsgiSend) -> bool:
    """Whether the caller has taken a part of the answer; else the connection is cut."""
    message = {"type": "http.response.body", "body": chunk, "more_body": True}
    if not line_of(scope).congested:  # As it nearly always is: then nothing is waited for.
        await send(message)
        return True
    with anyio.move_on_after(limits.DOOR_STALL_S) as patience:
        await send(message)
    if patience.cancelled_caught:
        log.warning("caller_stalled", limit_s=limits.DOOR_STALL_S)
        cut(scope)
    return not patience.cancelled_caught


async def refuse_unheard(key: ProcessKey, error: Exception, scope: Scope, send: AsgiSend) -> None:
    """The backend has heard nothing, so the request may go elsewhere."""
    log.warning("backend_refused_connection", process=str(key), error=repr(error))
    ended = Unavailable(f"the process {key} accepts no connections; it may have just ended")
    await refuse(scope, send, ended, [(REFUSAL_HEADER, b"not_ready")])


async def end_broken(
    key: ProcessKey,
    error: Exception,
    cause: BaseException | None,
    scope: Scope,
    send: AsgiSend,
    *,
    begun: bool,
) -> None:
    """The backend did not answer, or broke off in its answer. `cause`: what the system said."""
    log.warning("backend_broke_off", process=str(key), answer_begun=begun, error=repr(error))
    if not begun:
        silent = BackendFailed(f"the process {key} did not answer: {error or type(error).__name__}")
        unread = [(UNREAD_HEADER, b"1")] if _was_unread(cause) else []
        await refuse(scope, send, silent, [(REFUSAL_HEADER, b"backend_failed"), *unread])
    # Else the answer stays unfinished, which cuts the connection: half of it must not look whole.


def _was_unread(cause: BaseException | None) -> bool:
    """A system resets a connection when its process leaves it with bytes unread, or gets more of them later;
    one whose process has read them all is closed in order."""
    return isinstance(cause, OSError) and cause.errno in (errno.ECONNRESET, errno.EPIPE)
