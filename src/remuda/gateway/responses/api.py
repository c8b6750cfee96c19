"""OpenAI's Responses API: its endpoint, and what may be done with responses that are kept."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import NoSuchEndpoint, RemudaError, WrongMethod
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.endpoint import (
    ApiEndpoint,
    IncomingRequest,
    ParsedRequest,
    ReadyAnswer,
    send_answer,
)
from remuda.gateway.openai.errors import refusal
from remuda.gateway.responses.endpoints import ENDPOINT, PATH, ResponsesRequest
from remuda.gateway.responses.objects import PREFIX, ResponseHead, echo_of

_SHORT: Final = "/responses"


class ResponsesApi:
    """Implements gateway.inference.endpoint.ClientApi."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        endpoint = replace(ENDPOINT, prepare=self._prepared)
        self.endpoints: Final[Mapping[str, ApiEndpoint]] = {PATH: endpoint, _SHORT: endpoint}

    def covers(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in self.endpoints or path.startswith((f"{PATH}/", f"{_SHORT}/"))

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"]
        error: RemudaError = NoSuchEndpoint(no_such_endpoint(path))
        if path in self.endpoints:
            error = WrongMethod(f"{scope['method']} does not work on this path; use POST")
        answer = refusal(error)
        if isinstance(error, WrongMethod):
            answer = replace(answer, headers=(*answer.headers, (b"allow", b"POST")))
        await send_answer(send, answer, request_id)

    async def _prepared(
        self, known: ParsedRequest, request: IncomingRequest, body: bytes, key: ApiKey | None
    ) -> ParsedRequest | ReadyAnswer:
        assert isinstance(known, ResponsesRequest)
        for name in ("previous_response_id", "background"):
            if getattr(known.body, name):
                raise InvalidField(f"{name}: responses are not kept here yet", name, hint="send all of input")
        response_id = PREFIX + self._entropy.uuid().replace("-", "")
        head = ResponseHead(response_id, self._now(), echo_of(known.body, body))
        return msgspec.structs.replace(known, head=head, now=self._now)

    def _now(self) -> int:
        return int(self._clock.now().timestamp())
