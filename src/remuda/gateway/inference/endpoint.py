"""What an API offers where a model answers, in the terms that all of them share."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.core.slices import Sliced
from remuda.gateway.client_response import ApiFormat, ClientResponse, ErrorBody
from remuda.gateway.inference.text_sinks import JSON, ResponseSink
from remuda.gateway.server import ClientConnection
from remuda.inference.answers import AnswerSink
from remuda.inference.large_bodies import Slicer
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import InferenceCall, Request, RequestKind

HeaderMap = Mapping[bytes, bytes]


class ParsedRequest(Protocol):
    """A client's request, checked."""

    @property
    def request(self) -> Request | MediaRequest:
        """In the terms that upstreams know, which are OpenAI's."""
        ...

    def openai_body(self, body: bytes) -> bytes:
        """The request as OpenAI's JSON. It came as `body`, which is passed on as it is where that is JSON of
        OpenAI's. Asked for when the request is complete, media included."""
        ...

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> AnswerSink:
        """Renders the answer."""
        ...


class ReadyAnswer(msgspec.Struct, frozen=True):
    """An answer for which no model is needed. `events`: it is a stream of these, in place of a body."""

    body: bytes
    content_type: bytes = JSON
    status: int = 200
    events: AsyncGenerator[bytes, None] | None = None


class Prepare(Protocol):
    """What an endpoint still has to look up, once it is known who asks, and for which model."""

    async def __call__(
        self, known: ParsedRequest, request: "IncomingRequest", body: bytes, key: ApiKey | None
    ) -> ParsedRequest | ReadyAnswer: ...


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """A path to which requests for an answer of a model are posted."""

    kind: RequestKind
    format: ApiFormat
    body: type[msgspec.Struct]
    """What is read of a body, for the API's description."""
    parse: Callable[[bytes], ParsedRequest]
    """The request in a body; InvalidField says what is wrong with it."""
    prepare: Prepare | None = None
    """None: a parsed request is all there is to it."""
    form: Callable[[HeaderMap, bytes], Sliced[ParsedRequest]] | None = None
    """Of an endpoint whose bodies are forms, what `parse` is to others."""
    summary: str = ""
    """For the API's description, where paths share a kind."""
    other_names: Callable[[str], Sequence[str]] | None = None
    """What else a model may be called that is asked for by this name; None: nothing."""


class IncomingRequest(msgspec.Struct, frozen=True):
    """Made for every request: a dataclass would take a microsecond more."""

    endpoint: ApiEndpoint
    headers: HeaderMap
    receive: Receive
    line: ClientConnection | None
    response: ClientResponse


class ClientApi(Protocol):
    """An API that clients speak: its paths, and what it answers without a model."""

    @property
    def endpoints(self) -> Mapping[str, ApiEndpoint]:
        """By path, for POST."""
        ...

    def covers(self, scope: Scope) -> bool:
        """Whether this API answers a request that is for none of the endpoints."""
        ...

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """Answer one that it covers, refusals included."""
        ...


async def send_answer(send: Send, answer: ErrorBody, request_id: str) -> None:
    """A whole answer of an API, to a request that no model answers."""
    length = (b"content-length", str(len(answer.body)).encode())
    headers = [*answer.headers, length, (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
