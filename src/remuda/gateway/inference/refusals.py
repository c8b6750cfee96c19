"""What all APIs have in common where they refuse: the status, and headers that say what to do. Pure."""

import math
from typing import Final

from remuda.accounts.limit_state import LimitReached
from remuda.core.errors import RemudaError
from remuda.inference.failures import Unaffordable, UpstreamFailed

JSON_TYPE: Final = (b"content-type", b"application/json")
_DO_NOT_RETRY: Final = (b"x-should-retry", b"false")  # By which the SDKs give up at once.
_RETRY_AFTER_S: Final = 5
_RETRY_AFTER_S_MAX: Final = 300


def status_of(error: RemudaError) -> int:
    return error.status if isinstance(error, UpstreamFailed) else error.http_status


def headers_of(error: RemudaError, status: int) -> tuple[tuple[bytes, bytes], ...]:
    if status == 401:
        return (JSON_TYPE, (b"www-authenticate", b"Bearer"))
    if status not in (429, 503):
        return (JSON_TYPE,)
    if isinstance(error, LimitReached):  # It is known when there is more: clients are told exactly that.
        then = (b"retry-after", str(error.retry_after_s).encode())
        return (JSON_TYPE, then) if error.retryable else (JSON_TYPE, then, _DO_NOT_RETRY)
    if isinstance(error, Unaffordable):  # Not before a person has seen to it, or another month begins.
        return (JSON_TYPE, _DO_NOT_RETRY)
    wanted_s = math.ceil(getattr(error, "retry_after_s", _RETRY_AFTER_S))
    seconds = min(max(wanted_s, _RETRY_AFTER_S), _RETRY_AFTER_S_MAX)
    return (JSON_TYPE, (b"retry-after", str(seconds).encode()))
