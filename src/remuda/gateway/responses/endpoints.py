"""What a request of the Responses API asks for, in the router's terms. Pure."""

from typing import Final

import msgspec

from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.chat_json import chat_json
from remuda.gateway.inference.endpoint import ApiEndpoint
from remuda.gateway.inference.text_sinks import ResponseSink
from remuda.gateway.responses.answer_sink import KeepResponse, ResponsesSink, UnixClock
from remuda.gateway.responses.bodies import BODY, CHOICES, ResponsesBody
from remuda.gateway.responses.objects import ResponseHead
from remuda.gateway.responses.rendering import RESPONSES
from remuda.gateway.responses.translation import chat_of
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest

PATH: Final = "/v1/responses"


def _never() -> int:
    return 0


class ResponsesRequest(msgspec.Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest. It gets its `head` when it is known who asks."""

    request: ChatRequest
    body: ResponsesBody
    head: ResponseHead | None = None
    keep: KeepResponse | None = None
    now: UnixClock = _never

    def openai_body(self, body: bytes) -> bytes:
        return chat_json(self.request)

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> ResponsesSink:
        assert self.head is not None, "a request for a response is prepared before it is answered"
        return ResponsesSink(call, response, self.head, self.keep, self.now)


def parse(body: bytes) -> ResponsesRequest:
    known = decoded(BODY, body, CHOICES)
    if known.background and known.store is False:
        raise InvalidField("background needs store: the answer is fetched from there", "store")
    return ResponsesRequest(chat_of(known), known)


ENDPOINT: Final = ApiEndpoint(
    RequestKind.CHAT, RESPONSES, ResponsesBody, parse, summary="Answer a conversation of items"
)
