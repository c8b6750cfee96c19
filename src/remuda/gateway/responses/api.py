"""OpenAI's Responses API: its endpoint, and what may be done with responses that are kept."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
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
_LOOK_EVERY_S: Final = 1.0
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
            key = self._admission.asker(dict(scope["headers"]))
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if _streamed(scope["method"], path, query):
                events = await self._events(_parts(path)[0], query, "" if key is None else key.id)
                await _send_events(events, receive, send, request_id)
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
        return self._end_alone(kept, owner, number) if log is None else log.after(number)

    async def _end_alone(self, kept: StoredResponse, owner: str, number: int) -> AsyncGenerator[bytes, None]:
        """Of one that is worked on elsewhere, or is over since a while. Its lease bounds the wait."""
        found: StoredResponse | None = kept
        while found is not None and found.open:
            yield COMMENT
            await anyio.sleep(_LOOK_EVERY_S)
            found = await self._keeper.store.one(kept.id, owner)
        if found is not None:
            yield last_event(found, number + 1)

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
    events: AsyncGenerator[bytes, None], receive: Receive, send: Send, request_id: str
) -> None:
    headers = [*SSE_HEADERS, (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async with aclosing(events), anyio.create_task_group() as tasks:
        tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
        async for data in events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        tasks.cancel_scope.cancel()


async def _until_gone(receive: Receive, reading: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"there is no response {response_id[:80]!r}",
        hint="it was not stored, has been deleted, or belongs to another key",
    )
