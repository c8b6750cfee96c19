"""Errors in OpenAI's shape. Pure."""

from dataclasses import dataclass
from typing import Final

import msgspec

from remuda.core.errors import Invalid, RemudaError, Unauthorized
from remuda.inference.failures import UpstreamFailed
from remuda.router.errors import ModelLoading
from remuda.router.ports import LoadStatus

_RETRY_AFTER_S: Final = 5
_RETRY_AFTER_S_MAX: Final = 300
_JSON: Final = (b"content-type", b"application/json")


class InvalidField(Invalid):
    """`param` is the field's place in the request, as `messages[0].role`; empty: the body as a whole."""

    def __init__(self, message: str, param: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


class InvalidKey(Unauthorized):
    code = "invalid_api_key"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as the client gets it: as a whole answer, or as an event in a stream that has begun."""

    status: int
    code: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)

    @property
    def event(self) -> bytes:
        return b"data: " + self.body + b"\n\n"


def refusal(error: RemudaError) -> Refusal:
    """What the client is told of this error."""
    status = error.status if isinstance(error, UpstreamFailed) else error.http_status
    said: dict[str, object] = {"error": _described(error, status)}
    if isinstance(error, ModelLoading):
        said["loading"] = loading_object(error.status)
    return Refusal(status, error.code, msgspec.json.encode(said), _headers(error, status))


def loading_object(status: LoadStatus) -> dict[str, str | int | float]:
    """The contract's: what is not known is left out."""
    known: dict[str, str | int | float | None] = {
        "model": status.model,
        "state": status.state,
        "node": status.node or None,
        "progress": status.progress,
        "bytes_sent": status.bytes_sent,
        "total_bytes": status.total_bytes,
        "file_index": status.file_index,
        "total_files": status.total_files,
        "eta_seconds": status.eta_seconds,
    }
    return {name: value for name, value in known.items() if value is not None}


def _described(error: RemudaError, status: int) -> dict[str, str | None]:
    param = error.param if isinstance(error, InvalidField) else ""
    return {
        "message": str(error),
        "type": _type(error, status),
        "param": param or None,
        "code": error.code,
    }


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
