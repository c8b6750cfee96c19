"""Errors in OpenAI's shape, and why a field of a request cannot be used, in words for its author rather than
the decoder's. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remuda.core.errors import Invalid, RemudaError, Unauthorized
from remuda.inference.failures import UpstreamFailed
from remuda.inference.requests import Role
from remuda.router.loading import LoadStatus, ModelLoading

_RETRY_AFTER_S: Final = 5
_RETRY_AFTER_S_MAX: Final = 300
_JSON: Final = (b"content-type", b"application/json")


class InvalidField(Invalid):
    """`param` is the field's place in the request, as `messages[0].role`; empty: the body as a whole."""

    def __init__(self, message: str, param: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint, param=param)


class InvalidKey(Unauthorized):
    code = "invalid_api_key"


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


_QUOTED_CHARS_MAX: Final = 100
_PLACE: Final = " - at `$"
_ANY_KEY: Final = "[...]"  # How the decoder writes a key of the client's.
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND: Final = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_ENUM: Final = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d*\]")
_KINDS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "messages.role": get_args(Role),
    "tools.type": ("function",),
    "tool_choice": ("none", "auto", "required"),
    "tool_choice.type": ("function",),
    "response_format.type": ("text", "json_object", "json_schema"),
    "encoding_format": ("float", "base64"),
}


def wrong_field(message: str) -> InvalidField:
    """`said` is what the decoder says of a body."""
    what, _, place = message.rpartition(_PLACE) if _PLACE in message else (message, "", "")
    param, inside, _ = place.removesuffix("`").removeprefix(".").partition(_ANY_KEY)
    if missing := _MISSING.fullmatch(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidField(f"{param} is missing", param)
    each = ": each value" if inside else ""
    return InvalidField(f"{param or 'the body'}{each} {_words(what, param)}", param)


def _words(what: str, param: str) -> str:
    if wrong := _TYPE.fullmatch(what):
        if wrong[2] == "float" and "float" not in wrong[1] and "int" in wrong[1]:
            return "must be a whole number, without a fraction"
        wanted = [_KINDS.get(kind, "something else") for kind in wrong[1].split(" | ") if kind != "null"]
        return f"must be {' or '.join(wanted)}, not {_KINDS.get(wrong[2], 'this')}"
    if bound := _BOUND.fullmatch(what):
        return f"must be {_BOUNDS[bound[1]].format(bound[2].removesuffix('.0'))}"
    if length := _LENGTH.fullmatch(what):
        return _length(length[2] == "<=", "characters" if length[1] == "str" else "entries", int(length[3]))
    if enum := _ENUM.fullmatch(what):
        choices = _CHOICES.get(_INDEX.sub("", param), ())
        wanted_one = f"; use {' or '.join(choices)}" if choices else ""
        return f"cannot be {enum[1][:_QUOTED_CHARS_MAX]}{wanted_one}"
    return "cannot be used"


def _length(at_most: bool, of_what: str, count: int) -> str:
    if at_most:
        return f"must have at most {count} {of_what}"
    return "must not be empty" if count == 1 else f"must have at least {count} {of_what}"
