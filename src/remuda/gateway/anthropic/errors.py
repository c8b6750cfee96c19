"""Errors in Anthropic's shape, with the types and statuses by which its clients tell them apart. Pure."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from remuda.core.errors import RemudaError
from remuda.gateway.inference.api_format import JSON_TYPE, headers_of, status_of
from remuda.inference.failures import ContextExceeded

_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OVERLOADED: Final = 529  # What the API says instead of 503.
_TOKENS: Final = re.compile(r"(\d+) tokens do not fit the context of (\d+)")
_FIELDS: Final = (  # What was called otherwise before it was translated.
    (".function.parameters", ".input_schema"),
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("send the content itself, as a data: URL", "send the image itself, as a source of the type base64"),
)
_IMAGE: Final = re.compile(r"messages\[\d+\]\.content\[\d+\]\.image_url")  # Numbers of ours.


class ErrorCause(Struct):
    error_code: str  # Ours, as in docs/reference/errors.md.
    param: str | UnsetType = UNSET
    reasons: tuple[str, ...] | UnsetType = UNSET


class ErrorObject(Struct):
    type: str
    message: str
    details: ErrorCause


class AnthropicError(Struct):
    error: ErrorObject
    type: str = "error"


@dataclass(frozen=True, slots=True)
class AnthropicRefusal:
    """Implements gateway.client_response.ErrorBody."""

    status: int
    code: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON_TYPE,)


def refusal(error: RemudaError) -> AnthropicRefusal:
    """What the client reads of this error."""
    usual = status_of(error)
    status = _OVERLOADED if usual == 503 else usual
    cause = ErrorCause(error.code, _in_its_words(error.param) or UNSET, error.details or UNSET)
    told = ErrorObject(_type(status), _in_its_words(_message(error)), cause)
    body = msgspec.json.encode(AnthropicError(told))
    return AnthropicRefusal(status, error.code, body, headers_of(error, usual))


def _type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _message(error: RemudaError) -> str:
    """Clients know a prompt that is too long by Anthropic's words for it, and then send a shorter one."""
    text = error.public_text
    if not isinstance(error, ContextExceeded):
        return text
    found = _TOKENS.search(text)
    return (
        f"prompt is too long: {found[1]} tokens > {found[2]} maximum; {text}"
        if found
        else (f"prompt is too long: {text}")
    )


def _in_its_words(text: str) -> str:
    text = _IMAGE.sub("source" if _IMAGE.fullmatch(text) else "the source of an image", text)
    for ours, its in _FIELDS:
        text = text.replace(ours, its)
    return text
