"""Errors in OpenAI's shape. Pure."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remuda.accounts.budgets import REQUESTS
from remuda.accounts.limit_state import LimitReached, QuotaUsedUp
from remuda.core.errors import RemudaError
from remuda.gateway.inference.api_format import JSON_TYPE, headers_of, status_of
from remuda.inference.failures import ContextExceeded
from remuda.router.loading import LoadStatus, ModelLoading

_TOKENS: Final = re.compile(r"(\d+) tokens do not fit the context of (\d+)")


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
    headers: tuple[tuple[bytes, bytes], ...] = (JSON_TYPE,)


def refusal(error: RemudaError) -> ErrorResponse:
    """What the client reads of this error."""
    status = status_of(error)
    details = error.details or UNSET
    what = ErrorDetails(_message(error), _type(error, status), error.param or None, error.code, details)
    loading = _loading(error.status) if isinstance(error, ModelLoading) else UNSET
    body = msgspec.json.encode(ErrorAnswer(what, loading))
    return ErrorResponse(status, error.code, body, headers_of(error, status))


def _message(error: RemudaError) -> str:
    """Frameworks know a prompt that is too long by OpenAI's words for it, and then send a shorter one."""
    text = error.public_text
    found = _TOKENS.search(text) if isinstance(error, ContextExceeded) else None
    if found is None:
        return text
    length = f"This model's maximum context length is {found[2]} tokens"
    return f"{length}. However, you requested {found[1]} tokens: {text}"


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
    if isinstance(error, ModelLoading) or error.code == QuotaUsedUp.code:  # As OpenAI's own says it.
        return error.code
    if isinstance(error, LimitReached):
        return "requests" if error.kind in REQUESTS else "tokens"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
