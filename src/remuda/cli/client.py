"""A small client of the admin API; operations are read page by page, as many as were asked for. Whatever
goes wrong on the way becomes an error in plain words.
"""

import json
import select
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

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
from remuda.core.os_errors import NOT_HTTP, ConnectTrouble, connect_trouble, without_number
from remuda.wire.admin import NodeViews
from remuda.wire.codec import Many, decode
from remuda.wire.nodes import NodeError, NodeView, error_text
from remuda.wire.operations import OpViews
from remuda.wire.process_keys import ROLE_HEADER, WORKER_ROLE

M = TypeVar("M", bound=BaseModel)
TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 64 << 20  # Thousands of nodes.
_CHUNK_BYTES: Final = 64 << 10
_REASON_CHARS_MAX: Final = 500
_CLOSED: Final = "the connection was closed: the server does not speak HTTP, or wants https://"
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
_INFERENCE_KEY: Final = "invalid_api_key"  # The code below /v1, where no key need be an admin's.
_OUR_OWN_TROUBLE: Final = frozenset({"store_unusable", "bus_unusable", "internal", "child_failed"})


class _Words(BaseModel):
    message: str = ""
    code: str = ""
    details: Many[str] = ()


class _OpenAiError(BaseModel):
    """How errors look below /v1."""

    error: _Words


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    status: int
    body: bytes
    date: datetime | None  # The frontend's clock.
    role: str = ""  # What the server says it is; frontends say nothing.

    def read(self, model: type[M]) -> M:
        try:
            return decode(model, self.body, bytes_max=_ANSWER_BYTES_MAX)
        except Rejected as error:
            raise PeerFailed(
                f"not an answer of a Remuda frontend: {error.message}",
                hint="check --url or REMUDA_URL",
            ) from error


class Sized(Protocol):
    """A body in pieces, whose length is known."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...


class AdminClient:
    """A connection for each call, so that threads can share it."""

    def __init__(self, target: Target, timeout_s: float = TIMEOUT_S) -> None:
        self.url = target.url
        self._target = target
        self._timeout_s = timeout_s
        self._headers = {"User-Agent": f"remuda/{__version__}"}
        if target.api_key is not None:
            self._headers["Authorization"] = f"Bearer {target.api_key.get_secret_value()}"
        self._trust = _trust(target) if target.ca or target.url.startswith("https:") else None

    @property
    def has_no_key(self) -> bool:
        return self._target.api_key is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is kept open between calls."""

    def get(self, *path: str, **query: str) -> ApiAnswer:
        return self.call("GET", *path, query=query)

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        """The answer of a success; anything else is raised as the error that fits."""
        return self.require_success(self.probe(method, *path, body=body, query=query))

    def require_success(self, answer: ApiAnswer) -> ApiAnswer:
        if not 200 <= answer.status < 300:
            raise refusal_of(self._target, answer)
        return answer

    def require_frontend(self, answer: ApiAnswer) -> None:
        """Misconfigured, with where the address comes from, when a worker gave this answer."""
        if answer.role == WORKER_ROLE:
            raise _is_worker(self._target)

    def probe(
        self,
        method: str,
        *path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiAnswer:
        """The answer whatever its status; FrontendUnreachable when there is none."""
        sent, typed = _as_json(body)
        with self._exchange(
            method, path, query or {}, sent, {**typed, **(headers or {})}, self._timeout_s
        ) as reply:
            return self._answer(reply, self._timeout_s)

    def send(self, method: str, *path: str, body: Sized, headers: Mapping[str, str]) -> ApiAnswer:
        """The answer, whatever its status, to bytes that are sent piece by piece: only as many as are wanted,
        where it comes before the last."""
        sized = {**headers, "Content-Length": str(len(body))}
        with self._exchange(method, path, {}, body, sized, self._timeout_s) as reply:
            return self._answer(reply, self._timeout_s)

    @contextmanager
    def stream(
        self, *path: str, query: Mapping[str, str], headers: Mapping[str, str], quiet_s: float
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer that goes on, as they come. FrontendUnreachable when the line breaks, or
        nothing comes for `quiet_s`; a refusal is raised as the error that fits."""
        with self._exchange("GET", path, query, None, headers, quiet_s) as reply:
            self._require_success(reply, quiet_s)
            yield self._chunks(reply, quiet_s)

    @contextmanager
    def post_stream(
        self, *path: str, body: object, headers: Mapping[str, str], quiet_s: float
    ) -> Iterator[tuple[Mapping[str, str], Iterator[bytes]]]:
        """The head and the bytes of an answer to this body, as they come; errors as of `stream`."""
        sent, typed = _as_json(body)
        with self._exchange("POST", path, {}, sent, {**typed, **headers}, quiet_s) as reply:
            self._require_success(reply, quiet_s)
            head = {name.lower(): value for name, value in reply.getheaders()}
            yield head, self._chunks(reply, quiet_s)

    def nodes(self) -> tuple[ApiAnswer, list[NodeView]]:
        answer = self.get("api", "nodes")
        return answer, answer.read(NodeViews).root

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str],
        sent: bytes | Sized | None,
        headers: Mapping[str, str],
        quiet_s: float,
    ) -> Iterator[HTTPResponse]:
        """The head of the answer is there. Errors in the code that reads it are not explained here."""
        with self._plainly(quiet_s):
            connection, prefix = self._open()
        try:
            with self._plainly(quiet_s):
                connection.sock.settimeout(quiet_s)
                address = "/".join((prefix, *(quote(part, safe="") for part in path)))
                address += f"?{urlencode(query)}" if query else ""
                with _answer_before_the_end(connection):
                    connection.request(method, address, sent, {**self._headers, **headers})
                reply = connection.getresponse()
            yield reply
        finally:
            connection.close()

    def _open(self) -> tuple[HTTPConnection, str]:
        """A connection, and what paths begin with. No proxy from the environment: the frontend is on this
        network, often on this very machine."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection = (
            HTTPSConnection(host, port, timeout=self._timeout_s, context=self._trust)
            if parts.scheme == "https"
            else HTTPConnection(host, port, timeout=self._timeout_s)
        )
        try:
            connection.connect()
        except TimeoutError:
            raise _NotConnected(ConnectTrouble(f"no connection within {self._timeout_s:g} s")) from None
        except OSError as error:
            raise _NotConnected(connect_trouble(error, self._target.ca)) from error
        return connection, parts.path.rstrip("/")

    def _require_success(self, reply: HTTPResponse, quiet_s: float) -> None:
        if not 200 <= reply.status < 300:
            raise refusal_of(self._target, self._answer(reply, quiet_s))

    def _answer(self, reply: HTTPResponse, quiet_s: float) -> ApiAnswer:
        with self._plainly(quiet_s, answered=True):
            body = reply.read(_ANSWER_BYTES_MAX + 1)
            if reply.length and len(body) <= _ANSWER_BYTES_MAX:
                raise ConnectionResetError  # The library says nothing of a body that was cut off.
        date, role = (reply.getheader(name, "") for name in ("date", ROLE_HEADER))
        return ApiAnswer(reply.status, body, _date(date), role)

    def _chunks(self, reply: HTTPResponse, quiet_s: float) -> Iterator[bytes]:
        while True:
            with self._plainly(quiet_s, answered=True):
                chunk = reply.read1(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk

    @contextmanager
    def _plainly(self, quiet_s: float, *, answered: bool = False) -> Iterator[None]:
        """What goes wrong meanwhile is raised in plain words. `answered`: it has begun to, so it does speak
        HTTP."""
        try:
            yield
        except _NotConnected as error:
            trouble, cause = error.trouble, error.__cause__
        except TimeoutError as error:
            silence = f"connected, but nothing came within {quiet_s:g} s"
            raise FrontendUnreachable(
                f"the frontend at {self._target.shown} does not answer: {silence}",
                hint="it may be overloaded, or another program listens there; its log says more",
            ) from error
        except (HTTPException, ConnectionError) as error:
            if answered:
                raise FrontendUnreachable(
                    f"the connection to the frontend at {self._target.shown} was lost",
                    hint=_reach_hint(self._target),
                ) from error
            closed = isinstance(error, ConnectionError)  # Before it said anything.
            trouble, cause = ConnectTrouble(_CLOSED if closed else NOT_HTTP), error
        except (OSError, ValueError) as error:
            trouble, cause = ConnectTrouble(without_number(str(error)) or type(error).__name__), error
        else:
            return
        raise FrontendUnreachable(
            f"the frontend at {self._target.shown} cannot be reached: {trouble.why}",
            hint=trouble.hint or _reach_hint(self._target),
        ) from cause


def _as_json(body: object) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    return json.dumps(body, ensure_ascii=False).encode(), {"Content-Type": "application/json"}


@contextmanager
def _answer_before_the_end(connection: HTTPConnection) -> Iterator[None]:
    """A server that refuses a long body answers and closes the connection before it has read all of it: its
    answer says why, and the broken connection does not."""
    try:
        yield
    except ConnectionError:
        readable, _, _ = select.select([connection.sock], [], [], 0)
        if not readable:
            raise


class _NotConnected(Exception):
    def __init__(self, trouble: ConnectTrouble) -> None:
        super().__init__(trouble.why)
        self.trouble = trouble


def _trust(target: Target) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=target.ca)
    except OSError as error:  # SSLError is one too: a file that holds no certificate.
        raise Misconfigured(
            f"the CA file {target.ca} cannot be used: {error.strerror or error}",
            hint="give a PEM file with --ca or REMUDA_CA",
        ) from None


def _reach_hint(target: Target) -> str:
    checked = target.url_source if target.url_source in ("--url", "REMUDA_URL") else "the address"
    return f"check {checked}, and that `remuda up` or `remuda frontend` runs there"


def _is_worker(target: Target) -> Misconfigured:
    return Misconfigured(
        f"{target.shown} is a worker's port, not a frontend's",
        hint="use the address of the frontend that it joined, which `remuda doctor` there shows",
    )


def refusal_of(target: Target, answer: ApiAnswer) -> RemudaError:
    if answer.role == WORKER_ROLE:
        return _is_worker(target)
    url, kind = target.shown, _KINDS.get(answer.status, PeerFailed)
    if 300 <= answer.status < 400:
        return PeerFailed(f"{url} redirects, which is not followed", hint="use the address it redirects to")
    problem = _problem_in(answer.body)
    if answer.status == 401:
        return _unauthorized(target, admin=problem.code != _INFERENCE_KEY)
    message = problem.message.removesuffix(f" ({problem.hint})" if problem.hint else "")
    if problem.code == "model_not_found":
        message = message.replace("GET /v1/models lists", "`remuda models` lists")
    if not message and 400 <= answer.status < 500:  # A frontend says why; a proxy before one says 502 or so.
        return Misconfigured(
            f"{url} answered with HTTP status {answer.status}: that is not a Remuda frontend",
            hint="check the address",
        )
    message = message or f"the frontend at {url} answered with HTTP status {answer.status}"
    hint = problem.hint
    if not hint and problem.code in _OUR_OWN_TROUBLE:
        hint = "`remuda doctor` says more"
    return kind(message[:_REASON_CHARS_MAX], hint=hint, reason=problem.code, details=_details(answer.body))


def _unauthorized(target: Target, *, admin: bool) -> Unauthorized:
    """Only we know whether a key was sent, and where it came from."""
    if target.api_key is None:
        words = f"{target.shown} needs an API key"
        return Unauthorized(words, hint="give one with --api-key or REMUDA_API_KEY")
    source = f" from {target.key_source}" if target.key_source else ""
    return Unauthorized(
        f"the API key{source} is not valid for {target.shown}",
        hint=f"`remuda keys create NAME{' --scope admin' if admin else ''}` on the frontend's machine makes "
        "another",
    )


def _problem_in(body: bytes) -> Problem:
    """An error of any shape that frontends use; without words when it has none of them."""
    with suppress(Rejected):
        error = decode(NodeError, body).error
        return Problem(error.reason, error.message, error.hint)
    with suppress(Rejected):
        words = decode(_OpenAiError, body).error
        return Problem(words.code, words.message)
    return Problem("", error_text(body))


def _details(body: bytes) -> tuple[str, ...]:
    with suppress(Rejected):
        return decode(NodeError, body).error.details
    with suppress(Rejected):
        return decode(_OpenAiError, body).error.details
    return ()


def _date(header: str) -> datetime | None:
    try:
        return parsedate_to_datetime(header).astimezone(UTC)
    except (TypeError, ValueError):
        return None


_PAGE_MAX: Final = 1000  # What a frontend gives at once.


@dataclass(frozen=True, slots=True)
class ListedOperations:
    views: OpViews  # Its `next`: there are more.
    at: datetime | None  # By the frontend's clock, when the last page was made.


def read_pages(client: AdminClient, query: Mapping[str, str], limit: int | None) -> ListedOperations:
    """The newest of these; without a limit all of them. What is asked for meanwhile is newer than the first
    page, and shifts nothing."""
    got = OpViews()
    place: dict[str, str] = {}
    while True:
        wanted = _PAGE_MAX if limit is None else min(limit - len(got.operations), _PAGE_MAX)
        answer = client.get("api", "ops", **query, **place, limit=str(wanted))
        page = answer.read(OpViews)
        got = OpViews(operations=(*got.operations, *page.operations), next=page.next)
        if page.next is None or len(got.operations) == limit:
            return ListedOperations(got, answer.date)
        place = {"before": str(page.next)}
