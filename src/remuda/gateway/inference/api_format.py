"""What the formats of all APIs have in common: how they refuse, how they say how a key's limits stand, and
answers as server-sent events. Pure.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from remuda.accounts.limit_state import LimitReached, LimitState
from remuda.core.errors import RemudaError
from remuda.inference.failures import RateLimited, Unaffordable, UpstreamFailed
from remuda.router.loading import LoadStatus

HeaderFields = tuple[tuple[bytes, bytes], ...]
_Names = tuple[bytes, bytes, bytes]  # Of the limit, of what remains of it, and of when all of it is back.
JSON_TYPE: Final = (b"content-type", b"application/json")
_DO_NOT_RETRY: Final = (b"x-should-retry", b"false")  # By which the SDKs give up at once.
_RETRY_AFTER_S: Final = 5
_RETRY_AFTER_S_MAX: Final = 300
SSE: Final = b"text/event-stream"
SSE_HEADERS: Final = ((b"content-type", SSE), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
EVENT_START: Final = b"data: "
EVENT_END: Final = b"\n\n"


def status_of(error: RemudaError) -> int:
    return error.status if isinstance(error, UpstreamFailed) else error.http_status


def headers_of(error: RemudaError, status: int) -> HeaderFields:
    if status == 401:
        return (JSON_TYPE, (b"www-authenticate", b"Bearer"))
    if status not in (429, 503):
        return (JSON_TYPE,)
    if isinstance(error, LimitReached):  # It is known when there is more, and clients get that time.
        then = (b"retry-after", str(error.retry_after_s).encode())
        return (JSON_TYPE, then) if error.retryable else (JSON_TYPE, then, _DO_NOT_RETRY)
    if isinstance(error, Unaffordable):  # Not before a person has seen to it, or another month begins.
        return (JSON_TYPE, _DO_NOT_RETRY)
    wanted_s = math.ceil(getattr(error, "retry_after_s", _RETRY_AFTER_S))
    if error.code == RateLimited.code:  # What the server itself says.
        return (JSON_TYPE, (b"retry-after", str(max(wanted_s, 1)).encode()))
    seconds = min(max(wanted_s, _RETRY_AFTER_S), _RETRY_AFTER_S_MAX)
    return (JSON_TYPE, (b"retry-after", str(seconds).encode()))


class HeaderNames(NamedTuple):
    """How an API calls them: made once, for they are in every answer."""

    requests: _Names
    tokens: _Names

    @classmethod
    def of(cls, name: str) -> "HeaderNames":
        """`name`: by what a header counts (`of`) and what it says (`what`)."""
        return cls(_names(name, "requests"), _names(name, "tokens"))


def limit_headers(
    limits: Sequence[LimitState], names: HeaderNames, reset: Callable[[LimitState], bytes]
) -> HeaderFields:
    headers: HeaderFields = ()
    for shown in limits:
        limit, remaining, resets = names.requests if shown.of_requests else names.tokens
        headers += (
            (limit, b"%d" % shown.limit),
            (remaining, b"%d" % shown.remaining),
            (resets, reset(shown)),
        )
    return headers


def _names(name: str, of: str) -> _Names:
    limit, remaining, reset = (
        name.format(of=of, what=what).encode() for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset


def ended(written: bytes) -> bytes:
    """What ends the event that was `written` last, if it was cut off."""
    return EVENT_END if written and not written.endswith(EVENT_END) else b""


class EventStreamFormat:
    """The part of gateway.client_response.ApiFormat that does not depend on the API."""

    stream_headers: Final = SSE_HEADERS
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def is_stream(self, content_type: bytes) -> bool:
        return content_type.startswith(SSE)

    def node_comment(self, node_name: str) -> bytes:
        return b": node %b\n\n" % node_name.encode()

    def loading_comment(self, status: LoadStatus) -> bytes:
        return f": {' '.join(_loading_words(status).split())}\n\n".encode()


def _loading_words(status: LoadStatus) -> str:
    """What is being done for a request that waits. How far a backend is with its model is not known."""
    if status.waits_for:
        return f"waiting for {status.model}: {status.waits_for}"
    where = f" on {status.node}" if status.node else ""
    match status.state:
        case "pending":
            return f"preparing to load {status.model}{where}"
        case "installing":
            return f"installing the backend of {status.model}{where}: {status.progress:.0f}%"
        case "staging" if status.bytes_sent:
            return f"copying {status.model} to {status.node}: {status.progress:.0f}%"
        case "staging":
            return f"checking the files of {status.model} for {status.node}"
    return f"{status.state} {status.model}{where}"
