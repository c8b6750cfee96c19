"""Errors in Ollama's shape, and how its streams are framed. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from remuda.accounts.limit_state import LimitState
from remuda.core.errors import RemudaError
from remuda.gateway.inference.api_format import HeaderFields, headers_of, status_of
from remuda.gateway.ollama.rendering import NDJSON
from remuda.router.loading import LoadStatus

_LINE_END: Final = b"\n"


_PATHS: Final = frozenset(
    f"/api/{name}"
    for name in (
        *("chat", "generate", "embed", "embeddings", "tags", "ps", "show", "version", "pull", "delete"),
        *("create", "copy", "push", "blobs", "me", "signout", "web_search", "web_fetch"),
    )
)


def is_ollamas(path: str) -> bool:
    """Whether it is a path of this API, offered here or not, among those of our own."""
    return path in _PATHS or path.startswith("/api/blobs/")


class OllamaError(msgspec.Struct):
    error: str


@dataclass(frozen=True, slots=True)
class OllamaRefusal:
    """An error as the client gets it: as a whole answer, or as a line of a stream that has begun."""

    status: int
    code: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def error_body(error: RemudaError) -> bytes:
    return msgspec.json.encode(OllamaError(_in_its_words(error.public_text)))


_PICTURE: Final = re.compile(r"messages\[\d+\]\.content\[(\d+)\]\.image_url")
_WORDS: Final = (
    ("GET /v1/models lists", "GET /api/tags lists"),
    ("send the content itself, as a data: URL", "send the picture itself, in base64"),
    ("image_url is not base64", "it is not base64"),
)


def _in_its_words(text: str) -> str:
    """Pictures are translated to the first parts of a message, and keep their numbers."""
    text = _PICTURE.sub(r"images[\1]", text)
    for ours, its in _WORDS:
        text = text.replace(ours, its)
    return text


def refusal(error: RemudaError) -> OllamaRefusal:
    """What the client reads of this error."""
    status = status_of(error)
    return OllamaRefusal(status, error.code, error_body(error), headers_of(error, status))


class OllamaFormat:
    """Implements gateway.client_response.ApiFormat: lines of JSON, among which there is room for no
    comments."""

    stream_headers: Final = ((b"content-type", NDJSON), (b"cache-control", b"no-store"))
    request_id_headers: Final = (b"x-request-id",)

    def limit_headers(self, limits: Sequence[LimitState]) -> HeaderFields:
        return ()  # The API has none.

    def is_stream(self, content_type: bytes) -> bool:
        return content_type == NDJSON

    def error(self, error: RemudaError) -> OllamaRefusal:
        return refusal(error)

    def last_event(self, body: bytes, written: bytes) -> bytes:
        """Whatever was `written` last is ended first."""
        cut_off = written and not written.endswith(_LINE_END)
        return (_LINE_END if cut_off else b"") + body + _LINE_END

    def node_comment(self, node_name: str) -> bytes:
        return b""

    def loading_comment(self, status: LoadStatus) -> bytes:
        return b""


OLLAMA: Final = OllamaFormat()
