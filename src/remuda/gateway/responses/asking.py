"""From a request for a response to the answer: what was said before it is fetched, what it comes to is kept,
and what no client waits for is worked on in the background.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.types import Message, Scope

from remuda.accounts.keys import ApiKey
from remuda.accounts.limiter import Charge
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import TooLarge
from remuda.gateway.inference.api import InferenceHandler
from remuda.gateway.inference.api_format import SSE
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.charges import CHARGE
from remuda.gateway.inference.endpoint import HeaderMap, IncomingRequest, ParsedRequest, ReadyAnswer
from remuda.gateway.openai.errors import ErrorAnswer, ErrorDetails
from remuda.gateway.responses.bodies import GIVEN, GivenMembers, Item, ResponsesBody
from remuda.gateway.responses.endpoints import ENDPOINT, PATH, ResponsesRequest
from remuda.gateway.responses.event_log import EventLog
from remuda.gateway.responses.keeper import BackgroundWork, ResponseKeeper
from remuda.gateway.responses.kept import drafted, ended_with, items_of, shown
from remuda.gateway.responses.objects import PREFIX, ResponseHead, ResponseResult, echo_of, error_object
from remuda.gateway.responses.translation import continued
from remuda.inference.large_bodies import Outline, outlined
from remuda.inference.requests import MESSAGES_MAX
from remuda.inference.stored_responses import KEPT_BYTES_MAX, StoredResponse

_FAILED: Final = "server_error"  # OpenAI has few codes for this.
_LIMITED: Final = "rate_limit_exceeded"
_LIMITS: Final = frozenset({_LIMITED, "insufficient_quota"})
_STOPPED: Final = "the frontend that worked on it was stopped; ask again"
_error: Final = msgspec.json.Decoder(ErrorAnswer)


class _Told(msgspec.Struct):
    """The data of an event `error`."""

    code: str
    message: str
    type: str = ""


_event_error: Final = msgspec.json.Decoder(_Told)


class ResponseDesk:
    def __init__(
        self, handler: InferenceHandler, keeper: ResponseKeeper, clock: Clock, entropy: Entropy
    ) -> None:
        self._handler = handler
        self._keeper = keeper
        self._clock = clock
        self._entropy = entropy

    async def prepared(
        self, known: ParsedRequest, request: IncomingRequest, body: bytes, key: ApiKey | None
    ) -> ParsedRequest | ReadyAnswer:
        """Implements gateway.inference.endpoint.Prepare."""
        assert isinstance(known, ResponsesRequest)
        asked, owner = known.body, "" if key is None else key.id
        response_id = PREFIX + self._entropy.uuid().replace("-", "")
        outline = await outlined(body) if len(body) > limits.PARSED_AT_ONCE_BYTES_MAX else None
        given = _given(asked, body if outline is None else outline.text)
        head = ResponseHead(response_id, self._now(), echo_of(asked, given), bool(asked.background))
        if outline is not None and Outline.stand_ins(head.echo):
            raise InvalidField("a text among the settings of the response is too long")
        chain: Sequence[StoredResponse] = ()
        chat = known.request
        if asked.previous_response_id is not None:
            chain = await self._keeper.store.chain(asked.previous_response_id, owner)
            chat = continued(chat, asked, await _history(chain))
            if len(chat.messages) > MESSAGES_MAX:
                words = f"the conversation has more than {MESSAGES_MAX} messages"
                raise InvalidField(words, "previous_response_id", hint="begin a new one")
        known = msgspec.structs.replace(known, request=chat, head=head, now=self._now)
        if asked.store is False:
            return known
        if len(body) > KEPT_BYTES_MAX:
            if asked.background:
                raise TooLarge(
                    f"what is kept of a response has at most {KEPT_BYTES_MAX} bytes",
                    hint="send less, or ask without background",
                )
            return known
        written = bytes(given.input)
        if outline is not None:
            written = await outline.filled(written)
        draft = drafted(head, owner, asked.model, asked.previous_response_id, written)
        ids = [one.id for one in chain]
        if asked.background:
            written_bytes = max(len(body), len(known.openai_body(body)))
            await self._handler.set_aside(chat, None, written_bytes, key, request.response)
            return await self._in_background(known, draft, ids, request)
        return msgspec.structs.replace(known, keep=partial(self._keep, draft, ids))

    async def _keep(self, draft: StoredResponse, chain: Sequence[str], result: ResponseResult) -> bool:
        whole = ended_with(draft, result)
        return whole.kept_bytes <= KEPT_BYTES_MAX and await self._keeper.keep(whole, chain)

    async def _in_background(
        self, known: ResponsesRequest, draft: StoredResponse, chain: Sequence[str], request: IncomingRequest
    ) -> ReadyAnswer:
        self._keeper.check_room()
        await self._keeper.store.add(draft, chain)
        asked = request.response
        charge, asked.charge = asked.charge, None  # The work's now, and settled with it.
        work = partial(self._work, known, draft, request.headers, charge)
        log = EventLog() if known.request.stream else None
        abandoned = _failed(draft, error_object(_FAILED, _STOPPED))
        self._keeper.start(BackgroundWork(draft.id, work, abandoned, log=log))
        if log is not None:
            return ReadyAnswer(b"", SSE, events=log.after(-1))
        return ReadyAnswer(shown(draft))

    async def _work(
        self,
        known: ResponsesRequest,
        draft: StoredResponse,
        headers: HeaderMap,
        charge: Charge | None,
        one: BackgroundWork,
    ) -> StoredResponse | None:
        """Asked as by a client that waits for the whole answer, and leaves when the work is to stop."""
        written = list[StoredResponse]()

        async def keep(result: ResponseResult) -> bool:
            written.append(ended_with(draft, result))
            return True

        client = _WaitingClient(one.stopped, one.log)
        kept = msgspec.structs.replace(known, keep=keep)
        endpoint = replace(ENDPOINT, parse=lambda body: kept)
        asked = {"type": "http", "method": "POST", "path": PATH, "headers": list(headers.items())}
        scope: Scope = {**asked, CHARGE: charge}
        await self._handler(endpoint, scope, client.receive, client.send)
        return written[0] if written else _failed(draft, client.refusal())

    def _now(self) -> int:
        return int(self._clock.now().timestamp())


async def _history(chain: Sequence[StoredResponse]) -> list[Item]:
    """What was said in all of these. One after the other is read, so that none holds up other requests."""
    items = list[Item]()
    for kept in chain:
        if kept.status not in ("completed", "incomplete"):
            words = f"the response {kept.id} is {kept.status.replace('_', ' ')}: nothing follows on it"
            raise InvalidField(words, "previous_response_id", hint="wait until it is completed")
        items += items_of(kept)
        await checkpoint()
    return items


def _given(asked: ResponsesBody, text: bytes) -> GivenMembers:
    """What of the body is needed as it was written; mostly nothing, where the response is not kept."""
    if asked.store is False and asked.tools is None and asked.tool_choice is None:
        return GivenMembers()
    return GIVEN.decode(text)


def _failed(draft: StoredResponse, error: bytes) -> StoredResponse:
    return msgspec.structs.replace(draft, status="failed", error=error)


class _WaitingClient:
    """Stands for the client of work in the background, as an ASGI application sees one."""

    def __init__(self, leaves: anyio.Event, log: EventLog | None) -> None:
        self._leaves = leaves
        self._log = log
        self._streams = False
        self._asked = False
        self._answer = b""

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._streams = self._log is not None and (b"content-type", SSE) in message["headers"]
        elif self._streams and self._log is not None:
            self._log.add(message.get("body", b""))
        else:
            self._answer += message.get("body", b"")

    def refusal(self) -> bytes:
        """Why there is no answer."""
        try:
            if self._streams and self._log is not None:
                told: _Told | ErrorDetails = _event_error.decode(self._log.error)
            else:
                told = _error.decode(self._answer).error
        except msgspec.DecodeError:
            return error_object(_FAILED, _STOPPED)
        limited = told.type == "rate_limit_error" or told.code in _LIMITS
        return error_object(_LIMITED if limited else _FAILED, told.message)
