"""Errors in OpenAI's shape. Pure."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remuda.core.errors import RemudaError
from remuda.inference.failures import UpstreamFailed
from remuda.router.loading import LoadStatus, ModelLoading

_RETRY_AFTER_S: Final = 5
_RETRY_AFTER_S_MAX: Final = 300
_JSON: Final = (b"content-type", b"application/json")


class ErrorDetails(Struct):
    message: str
    type: str
    param: str | None
    code: str
    details: tuple[str, ...] | UnsetType = UNSET  # Ours, additive: one line for each reason in the message.


class LoadingState(Struct):
    """How far a model's load is, in the contract's words: what is not known is left out."""

    model: str
    state: str
    progress: float
    bytes_sent: int
    total_bytes: int
    file_index: int
    total_files: int
    node: str | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET


class ErrorAnswer(Struct):
    error: ErrorDetails
    loading: LoadingState | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error as the client gets it: as a whole answer, or as an event in a stream that has begun."""

    status: int
    code: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)


def refusal(error: RemudaError) -> ErrorResponse:
    """What the client reads of this error."""
    status = error.status if isinstance(error, UpstreamFailed) else error.http_status
    details = error.details or UNSET
    what = ErrorDetails(error.public_text, _type(error, status), error.param or None, error.code, details)
    loading = _loading(error.status) if isinstance(error, ModelLoading) else UNSET
    body = msgspec.json.encode(ErrorAnswer(what, loading))
    return ErrorResponse(status, error.code, body, _headers(error, status))


def _loading(status: LoadStatus) -> LoadingState:
    return LoadingState(
        status.model,
        status.state,
        status.progress,
        status.bytes_sent,
        status.total_bytes,
        status.file_index,
        status.total_files,
        status.node or UNSET,
        UNSET if status.eta_seconds is None else status.eta_seconds,
    )


def _type(error: RemudaError, status: int) -> str:
    if isinstance(error, ModelLoading):
        return error.code
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _headers(error: RemudaError, status: int) -> tuple[tuple[bytes, bytes], ...]:
    if status == 401:
        return (_JSON, (b"www-authenticate", b"Bearer"))
    if status not in (429, 503):
        return (_JSON,)
    wanted_s = getattr(error, "retry_after_s", _RETRY_AFTER_S)
    seconds = min(max(wanted_s, _RETRY_AFTER_S), _RETRY_AFTER_S_MAX)
    return (_JSON, (b"retry-after", str(seconds).encode()))
