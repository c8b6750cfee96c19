"""A small client of the admin API. Whatever goes wrong on the way becomes an error in plain words."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from remuda import __version__
from remuda.cli.target import Target
from remuda.core.errors import (
    Conflict,
    Forbidden,
    FrontendUnreachable,
    Invalid,
    Misconfigured,
    NotFound,
    PeerFailed,
    Problem,
    Rejected,
    RemudaError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from remuda.core.os_errors import without_number
from remuda.wire.admin import NodeViews
from remuda.wire.codec import decode
from remuda.wire.nodes import NodeError, NodeView, error_text

M = TypeVar("M", bound=BaseModel)
TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 64 << 20  # Thousands of nodes.
_REASON_CHARS_MAX: Final = 500
_KINDS: Final[Mapping[int, type[RemudaError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Invalid,
    503: Unavailable,
}
_OUR_OWN_TROUBLE: Final = frozenset({"store_unusable", "bus_unusable", "internal", "child_failed"})


class _Words(BaseModel):
    message: str = ""
    code: str = ""


class _OpenAiError(BaseModel):
    """How errors look below /v1."""

    error: _Words


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    status: int
    body: bytes
    date: datetime | None  # The frontend's clock.

    def read(self, model: type[M]) -> M:
        try:
            return decode(model, self.body, bytes_max=_ANSWER_BYTES_MAX)
        except Rejected as error:
            raise PeerFailed(
                f"not an answer of a Remuda frontend: {error.message}",
                hint="check --url or REMUDA_URL",
            ) from error


class AdminClient:
    def __init__(self, target: Target, timeout_s: float = TIMEOUT_S) -> None:
        self.url = target.url
        self._target = target
        self._timeout_s = timeout_s
        headers = {"User-Agent": f"remuda/{__version__}"}
        if target.api_key is not None:
            headers["Authorization"] = f"Bearer {target.api_key.get_secret_value()}"
        # No proxy from the environment: the frontend is on this network, often on this very machine.
        self._http = httpx.Client(
            headers=headers, verify=_trust(target), timeout=timeout_s, follow_redirects=False, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, *path: str, **query: str) -> ApiAnswer:
        return self.call("GET", *path, query=query)

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        """The answer of a success; anything else is raised as the error that fits."""
        answer = self.probe(method, *path, body=body, query=query)
        if not 200 <= answer.status < 300:
            raise refusal_of(self._target, answer)
        return answer

    def probe(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        """The answer whatever its status; FrontendUnreachable when there is none."""
        try:
            reply = self._http.request(method, self._address(path), json=body, params=query or None)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error, self._timeout_s) from error
        return _answer(reply)

    @contextmanager
    def stream(
        self, *path: str, query: Mapping[str, str], headers: Mapping[str, str], quiet_s: float
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer that goes on, as they come. FrontendUnreachable when the line breaks, or
        nothing comes for `quiet_s`; a refusal is raised as the error that fits."""
        timeout = httpx.Timeout(self._timeout_s, read=quiet_s)
        try:
            with self._http.stream(
                "GET", self._address(path), params=query, headers=headers, timeout=timeout
            ) as reply:
                if not reply.is_success:
                    reply.read()
                    raise refusal_of(self._target, _answer(reply))
                yield reply.iter_bytes()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error, quiet_s) from error

    @contextmanager
    def post_stream(
        self, *path: str, body: object, headers: Mapping[str, str], quiet_s: float
    ) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The head and the bytes of an answer to this body, as they come; errors as of `stream`."""
        timeout = httpx.Timeout(self._timeout_s, read=quiet_s)
        try:
            with self._http.stream(
                "POST", self._address(path), json=body, headers=headers, timeout=timeout
            ) as reply:
                if not reply.is_success:
                    reply.read()
                    raise refusal_of(self._target, _answer(reply))
                yield reply.headers, reply.iter_bytes()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error, quiet_s) from error

    def nodes(self) -> tuple[ApiAnswer, list[NodeView]]:
        answer = self.get("api", "nodes")
        return answer, answer.read(NodeViews).root

    def _address(self, path: tuple[str, ...]) -> str:
        return "/".join((self.url, *(quote(part, safe="") for part in path)))

    def _unreachable(self, error: httpx.HTTPError | httpx.InvalidURL, timeout_s: float) -> RemudaError:
        return FrontendUnreachable(
            f"the frontend at {self.url} cannot be reached: {_reason(error, timeout_s)}",
            hint="check the address, and that `remuda up` or `remuda frontend` runs there",
        )


def _answer(reply: httpx.Response) -> ApiAnswer:
    return ApiAnswer(reply.status_code, reply.content, _date(reply.headers.get("date", "")))


def _trust(target: Target) -> ssl.SSLContext:
    if target.ca is None and target.url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Not used, and trusts nobody: quicker to make.
    try:
        return ssl.create_default_context(cafile=target.ca)
    except OSError as error:  # SSLError is one too: a file that holds no certificate.
        raise Misconfigured(
            f"the CA file {target.ca} cannot be used: {error.strerror or error}",
            hint="give a PEM file with --ca or REMUDA_CA",
        ) from None


def refusal_of(target: Target, answer: ApiAnswer) -> RemudaError:
    url, kind = target.url, _KINDS.get(answer.status, PeerFailed)
    if 300 <= answer.status < 400:
        return PeerFailed(f"{url} redirects, which is not followed", hint="use the address it redirects to")
    if answer.status == 401:
        return _unauthorized(target)
    said = _said(answer.body)
    message = said.message.removesuffix(f" ({said.hint})" if said.hint else "")
    if said.code == "model_not_found":
        message = message.replace("GET /v1/models lists", "`remuda models` lists")
    message = message or f"the frontend at {url} answered with HTTP status {answer.status}"
    hint = said.hint
    if not hint and said.code in _OUR_OWN_TROUBLE:
        hint = "`remuda doctor` says more"
    return kind(message[:_REASON_CHARS_MAX], hint=hint, reason=said.code)


def _unauthorized(target: Target) -> Unauthorized:
    """Only we know whether a key was sent, and where it came from."""
    if target.api_key is None:
        words = f"{target.url} needs an API key"
        return Unauthorized(words, hint="give one with --api-key or REMUDA_API_KEY")
    source = f" from {target.key_source}" if target.key_source else ""
    return Unauthorized(
        f"the API key{source} is not valid for {target.url}",
        hint="`remuda keys create NAME --scope admin` on the frontend's machine makes another",
    )


def _said(body: bytes) -> Problem:
    """An error of any shape that frontends use; without words when it has none of them."""
    with suppress(Rejected):
        told = decode(NodeError, body).error
        return Problem(told.reason, told.message, told.hint)
    with suppress(Rejected):
        words = decode(_OpenAiError, body).error
        return Problem(words.code, words.message)
    return Problem("", error_text(body))


def _reason(error: httpx.HTTPError | httpx.InvalidURL, timeout_s: float) -> str:
    """The library's words, made plain where they are not."""
    text = str(error)
    match error:
        case httpx.ConnectTimeout():
            return f"no connection within {timeout_s:g} s"
        case httpx.TimeoutException():
            return f"connected, but no answer within {timeout_s:g} s"
        case httpx.ConnectError() if "refused" in text:
            return "connection refused: nothing listens there"
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in text:
            return "its certificate is not trusted (give the CA file that signed it with --ca)"
        case httpx.ConnectError() if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
            return "it does not speak HTTPS (try http://)"
        case httpx.ConnectError() if "Name or service not known" in text or "nodename nor servname" in text:
            return "unknown host"
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return "the connection was closed: the server does not speak HTTP, or wants https://"
        case _:
            return without_number(text) or type(error).__name__


def _date(header: str) -> datetime | None:
    try:
        return parsedate_to_datetime(header).astimezone(UTC)
    except (TypeError, ValueError):
        return None
