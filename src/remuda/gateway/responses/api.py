"""OpenAI's Responses API: its endpoint, and what may be done with responses that are kept."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import anyio
from starlette.types import Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.core.errors import NoSuchEndpoint, NotFound, RemudaError, WrongMethod
from remuda.gateway.home import no_such_endpoint
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.api_format import SSE_HEADERS
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.endpoint import ApiEndpoint, send_answer
from remuda.gateway.openai.errors import ErrorResponse, refusal
from remuda.gateway.responses.asking import ResponseDesk
from remuda.gateway.responses.endpoints import ENDPOINT, PATH
from remuda.gateway.responses.event_log import COMMENT, last_event
from remuda.gateway.responses.keeper import ResponseKeeper
from remuda.gateway.responses.kept import QueryOf, input_page, shown
from remuda.inference.stored_responses import StoredResponse

_SHORT: Final = "/responses"
_NUMBER: Final = re.compile(r"-1|[0-9]{1,9}")
_LOOK_EVERY_S: Final = 0.25
_LAST_S: Final = 5.0  # For the end, to someone who may not read any more.
_COMMENT_EVERY: Final = 40  # Such looks.
_MISSED_MAX: Final = 2  # Questions to other frontends without an answer: then no frontend has the events.
_NOT_OFFERED: Final = frozenset({"input_tokens", "compact"})  # Where ids are elsewhere: no id is like them.
_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("GET", "DELETE"),
    "input_items": ("GET",),
    "cancel": ("POST",),
}


class ResponsesApi:
    """Implements gateway.inference.endpoint.ClientApi."""

    def __init__(self, desk: ResponseDesk, admission: Admission, keeper: ResponseKeeper) -> None:
        self._admission = admission
        self._keeper = keeper
        endpoint = replace(ENDPOINT, prepare=desk.prepared)
        self.endpoints: Final[Mapping[str, ApiEndpoint]] = {PATH: endpoint, _SHORT: endpoint}

    def covers(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in self.endpoints or path.startswith((f"{PATH}/", f"{_SHORT}/"))

    async def respond(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"]
        try:
            headers = dict(scope["headers"])
            key = self._admission.asker(headers)
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if _streamed(scope["method"], path, query):
                events = await self._events(_parts(path)[0], query, "" if key is None else key.id)
                shut_out = partial(self._admission.until_shut_out, headers)
                await _send_events(events, shut_out, receive, send, request_id)
                return
            answer = ErrorResponse(200, "", await self._answer(scope["method"], path, query, key))
        except RemudaError as error:
            answer = refusal(error)
            if isinstance(error, WrongMethod):
                allowed = (b"allow", ", ".join(_allowed(path)).encode())
                answer = replace(answer, headers=(*answer.headers, allowed))
        await send_answer(send, answer, request_id)

    async def _answer(self, method: str, path: str, query: QueryOf, key: ApiKey | None) -> bytes:
        allowed = _allowed(path)
        if not allowed:
            raise NoSuchEndpoint(no_such_endpoint(f"{PATH}{path.removeprefix('/v1').removeprefix(_SHORT)}"))
        if method not in allowed:
            raise WrongMethod(f"{method} does not work on this path; use {' or '.join(allowed)}")
        response_id, what = _parts(path)
        owner = "" if key is None else key.id
        if method == "DELETE":
            return await self._deleted(response_id, owner)
        if what == "cancel":
            return shown(await self._cancelled(response_id, owner))
        kept = await self._keeper.store.one(response_id, owner)
        if kept is None:
            raise _unknown(response_id)
        if what == "input_items":
            return input_page(kept, query)
        return shown(kept)

    async def _events(self, response_id: str, query: QueryOf, owner: str) -> AsyncGenerator[bytes, None]:
        """Those after the one that the client has read last: all that are known here, and the end."""
        kept = await self._keeper.store.one(response_id, owner)
        if kept is None:
            raise _unknown(response_id)
        if not kept.background:
            words = "stream: only responses that are made in the background are streamed again"
            raise InvalidField(words, "stream", hint="ask for it without stream")
        number = _number(query)
        log = self._keeper.log(response_id)
        return self._from_elsewhere(kept, owner, number + 1) if log is None else log.after(number)

    async def _from_elsewhere(
        self, kept: StoredResponse, owner: str, first: int
    ) -> AsyncGenerator[bytes, None]:
        """Of one that another frontend works on, or has worked on lately: its events from this one on, or the
        end alone where no frontend has them any more. Its lease bounds the wait."""
        relay, idle, missed = self._keeper.relay, 0, 0
        while True:
            told = None if relay is None else await relay.ask(kept.id, first)
            missed = 0 if told is not None else missed + 1
            if told is not None:
                first = max(first, told.next)
                if told.events:
                    yield told.events.encode()
                if not told.ended and told.events:
                    idle = 0
                    continue
            if missed >= (1 if relay is None else _MISSED_MAX) or (told is not None and told.ended):
                found = await self._keeper.store.one(kept.id, owner)
                if found is None or not found.open:
                    if found is not None and (told is None or first == told.next):
                        yield last_event(found, first)
                    return
            if idle % _COMMENT_EVERY == 0:
                yield COMMENT
            idle += 1
            await anyio.sleep(_LOOK_EVERY_S)

    async def _deleted(self, response_id: str, owner: str) -> bytes:
        if not await self._keeper.store.delete(response_id, owner):
            raise _unknown(response_id)
        self._keeper.stop(response_id)
        return b'{"id":"%b","object":"response","deleted":true}' % response_id.encode()

    async def _cancelled(self, response_id: str, owner: str) -> StoredResponse:
        kept = await self._keeper.store.cancel(response_id, owner)
        if kept is None:
            raise _unknown(response_id)
        if not kept.background:
            words = "only responses that are made in the background can be cancelled"
            raise InvalidField(words, "response_id", hint="close the connection to end any other")
        if kept.status == "cancelled":
            self._keeper.stop(response_id)
        return kept


def _parts(path: str) -> tuple[str, str]:
    """The id in a path, and what is asked for of it."""
    response_id, _, what = path.removeprefix("/v1").removeprefix(f"{_SHORT}/").partition("/")
    return response_id, what


def _allowed(path: str) -> tuple[str, ...]:
    if path in (PATH, _SHORT):
        return ("POST",)
    response_id, what = _parts(path)
    if response_id in _NOT_OFFERED:
        return ()
    return _METHODS.get(what, ()) if response_id else ()


def _streamed(method: str, path: str, query: QueryOf) -> bool:
    response_id, what = _parts(path)
    wanted = query.get("stream", ("false",))[0] == "true"
    return method == "GET" and wanted and "GET" in _allowed(path) and bool(response_id) and not what


def _number(query: QueryOf) -> int:
    text = query.get("starting_after", ("-1",))[0]
    if not _NUMBER.fullmatch(text):
        raise InvalidField("starting_after must be the sequence_number of an event", "starting_after")
    return int(text)


async def _send_events(
    events: AsyncGenerator[bytes, None],
    shut_out: Callable[[], Awaitable[None]],
    receive: Receive,
    send: Send,
    request_id: str,
) -> None:
    """Until there are no more, the client is gone, or `shut_out` returns."""
    headers = [*SSE_HEADERS, (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    gone = False
    async with aclosing(events), anyio.create_task_group() as tasks:

        async def until_gone() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            tasks.cancel_scope.cancel()

        async def until_shut_out() -> None:
            await shut_out()
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_gone)
        tasks.start_soon(until_shut_out)
        async for data in events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        tasks.cancel_scope.cancel()
    if not gone:
        with anyio.move_on_after(_LAST_S, shield=True):
            await send({"type": "http.response.body", "body": b""})


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"there is no response {response_id[:80]!r}",
        hint="it was not stored, has been deleted, or belongs to another key",
    )
