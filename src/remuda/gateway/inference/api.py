"""Requests that a model is to answer leave the way of all others here. Each is admitted (who asks, what for,
of which model), answered, counted and logged, in whichever API it came.

Nothing here waits for anything but the client and the replica that answers.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import Final

import anyio
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.accounts.limiter import KeyLimits
from remuda.accounts.usage import UsageCounter
from remuda.core.clock import Clock
from remuda.core.errors import Internal, RemudaError
from remuda.core.log import masked
from remuda.gateway.client_response import CLIENT_GONE, ClientGone, ClientResponse
from remuda.gateway.cross_origin import HEADERS
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.bodies import Bodies, check_complexity, parsed
from remuda.gateway.inference.charges import CHARGE, charge, settle
from remuda.gateway.inference.claims import AVOID, PREFER, claim_of, hints_in, session_of
from remuda.gateway.inference.endpoint import (
    ApiEndpoint,
    ClientApi,
    IncomingRequest,
    ParsedRequest,
    ReadyAnswer,
)
from remuda.gateway.inference.media_links import body_with
from remuda.gateway.inference.request_records import RequestLog, decision_of, note_usage
from remuda.gateway.requests_under_way import FrontendStopping
from remuda.gateway.server import line_of
from remuda.gateway.services import Inference
from remuda.inference.answers import AnswerSink
from remuda.inference.failures import check_writes_text
from remuda.inference.large_bodies import CHEAP_BYTES_MAX, Slicer
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import TEXTS, InferenceCall, Request, RequestKind
from remuda.inference.requests import CompletionRequest, has_media
from remuda.models.config import SESSION
from remuda.router.loading import ModelUnknown
from remuda.router.table import RoutedModel

log = structlog.get_logger()
_SHOW_NODE: Final = b"x-remuda-show-node"  # By which an admin asks whose answer it is.
_ONLY_NODE: Final = b"x-remuda-node"  # By which an admin says whose answer it is to be.
_VIA: Final = b"x-remuda-via"  # Sent by a fleet that has adopted this one.
_SANE_ID: Final = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


class InferenceHandler:
    """Answers requests to endpoints, of every API. `limits`: None where keys limit nothing."""

    def __init__(
        self,
        inference: Inference,
        admission: Admission,
        limits: KeyLimits | None,
        usage: UsageCounter,
        clock: Clock,
        id_prefix: str,
    ) -> None:
        self._dispatcher = inference.dispatcher
        self._running = inference.running
        self._figures = inference.figures
        self._expose_node = inference.expose_node
        self._refresh_models = inference.refresh_models
        self._bodies = Bodies(inference.body_bytes_max)
        self._links = inference.links
        self._limits = limits
        self._usage = usage
        self._admission = admission
        self._clock = clock
        self._log = RequestLog()
        self._decisions = inference.decisions
        self._slicer = Slicer(clock)
        self._id_prefix = id_prefix
        self._ids = count(1)

    async def __call__(self, endpoint: ApiEndpoint, scope: Scope, receive: Receive, send: Send) -> None:
        headers, line = dict(scope["headers"]), line_of(scope)
        response = ClientResponse(
            endpoint.kind,
            self.request_id(headers),
            send,
            line,
            self._clock,
            endpoint.format,
            expose_node=self._expose_node,
        )
        if (told := scope.get(HEADERS)) is not None:
            response.added = told
        response.charge = scope.get(CHARGE)
        self._running.began(response)
        if line is not None:
            line.when_lost = response.leave
        try:
            await self._run(IncomingRequest(endpoint, headers, receive, line, response))
        except ClientGone:
            response.status = CLIENT_GONE
        finally:
            if line is not None:
                line.when_lost = None
            self._running.ended(response)
            self._bodies.forget(response)
            if response.charge is not None and self._limits is not None:
                settle(self._limits, response)
            ended_s, ended_at = self._clock.monotonic(), self._clock.now()
            self._figures.answered(response, ended_s)
            note_usage(self._usage, response, ended_at)
            self._log.answered(response, ended_s, ended_at)
            self._decisions.note(decision_of(response, ended_s))

    def request_id(self, headers: Mapping[bytes, bytes]) -> str:
        """The client's own, if it can go into a header and a log line; else a new one."""
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        if given and _SANE_ID.fullmatch(given) and masked(given) == given:
            return given
        return f"{self._id_prefix}{next(self._ids):x}"

    async def _run(self, request: IncomingRequest) -> None:
        """Answer, unless the response is ended before."""
        response = request.response
        try:
            await self._answer(request)
        except asyncio.CancelledError:
            if not response.interrupted():
                raise
            if response.ended_by is None:
                raise ClientGone from None
            await response.fail(response.ended_by)

    async def _answer(self, request: IncomingRequest) -> None:
        response = request.response
        try:
            admitted = await self._admit(request)
            if isinstance(admitted, ReadyAnswer):
                await _send_ready(admitted, response)
                return
            call, sink = admitted
            if request.line is not None:
                await self._dispatcher.answer(call, sink, response.routing, response.meanwhile)
            else:
                await self._answer_watching(call, sink, request)
            await response.finish()
        except RemudaError as error:
            await response.fail(error)
        except ClientGone:
            raise
        except Exception as bug:
            log.error("inference_failed", request_id=response.request_id, exc_info=bug)
            await response.fail(Internal("internal error; the frontend's log has the details"))

    async def _admit(self, request: IncomingRequest) -> tuple[InferenceCall, AnswerSink] | ReadyAnswer:
        if self._running.stopping:
            raise FrontendStopping("this frontend is stopping", hint="ask again: another one may answer")
        endpoint, response = request.endpoint, request.response
        key = self._caller(request)
        body = await self._bodies.read(request)
        known = await self._parsed(request, body)
        entry = await self._model(endpoint, known.request.model, key)
        response.model = entry.config.id
        if endpoint.prepare is not None:
            prepared = await endpoint.prepare(known, request, body, key)
            if isinstance(prepared, ReadyAnswer):
                return prepared
            known = prepared
        written = await self._written(known, body)
        await self._slicer.run(check_complexity(known.request))
        if isinstance(known.request, CompletionRequest):  # Some paths take a chat or a text.
            response.kind = RequestKind.COMPLETION
        if response.kind in TEXTS:
            check_writes_text(entry.config.id, entry.config.known_usecases)
        call = InferenceCall(
            response.kind,
            known.request,
            written,
            entry.config,
            response.request_id,
            int(self._clock.now().timestamp()),
            response.tally,
            entry.context,
        )
        response.stream = call.stream
        if entry.config.route_policy == SESSION:
            response.routing.session = session_of(request.headers, known.request, key)
        if self._limits is not None and key is not None and key.terms.limited:
            size = max(len(body), len(call.body))
            await charge(self._limits, key, call.request, call.context, size, response)
        return call, known.sink(call, response, self._slicer)

    async def set_aside(
        self,
        request: Request | MediaRequest,
        context: int | None,
        body_bytes: int,
        key: ApiKey | None,
        response: ClientResponse,
    ) -> None:
        """What the request may take of its key's limits. LimitReached: it may not."""
        if self._limits is not None and key is not None and key.terms.limited:
            await charge(self._limits, key, request, context, body_bytes, response)

    def _caller(self, request: IncomingRequest) -> ApiKey | None:
        """Whose request it is, with what key and headers say of where it is to go."""
        response, key = request.response, self._admission.asker(request.headers)
        if key is not None:
            response.caller, response.key_id, response.headers = key.name, key.id, request.headers
            response.routing.claim = claim_of(key)
        if PREFER in request.headers or AVOID in request.headers:
            response.routing.hints = hints_in(
                request.headers, key, open_to_all=self._admission.is_admin(None)
            )
        if _SHOW_NODE in request.headers and self._admission.may_see_nodes(key):
            response.expose_node = True
        response.routing.nodes_only = _VIA in request.headers
        if (node := request.headers.get(_ONLY_NODE)) is not None:
            response.routing.node = self._admission.chosen_node(node, key)
        return key

    async def _parsed(self, request: IncomingRequest, body: bytes) -> ParsedRequest:
        endpoint = request.endpoint
        if endpoint.form is not None:
            return await self._slicer.run(endpoint.form(request.headers, body))
        if len(body) <= CHEAP_BYTES_MAX:
            return endpoint.parse(body)
        return await parsed(endpoint, body, self._slicer)

    async def _written(self, known: ParsedRequest, body: bytes) -> bytes | Callable[[], bytes]:
        """The request as OpenAI's JSON, with what its links lead to in their place."""
        linked = await self._links.fetch(known.request) if has_media(known.request) else ()
        if linked and known.openai_body(body) is body:
            return body_with(body, linked)
        return partial(known.openai_body, body)

    async def _model(self, endpoint: ApiEndpoint, name: str, key: ApiKey | None) -> RoutedModel:
        """One that was added on another frontend a moment ago is not unknown."""
        try:
            return self._named(endpoint, name, key)
        except ModelUnknown:
            await self._refresh_models()
            return self._named(endpoint, name, key)

    def _named(self, endpoint: ApiEndpoint, name: str, key: ApiKey | None) -> RoutedModel:
        try:
            return self._admission.model(name, key)
        except ModelUnknown:
            for other in () if endpoint.other_names is None else endpoint.other_names(name):
                with suppress(ModelUnknown):
                    return self._admission.model(other, key)
            raise

    async def _answer_watching(self, call: InferenceCall, sink: AnswerSink, request: IncomingRequest) -> None:
        """Under a server that is not ours: it tells only those who ask that the client is gone."""
        response, failure = request.response, None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, request)
            try:
                await self._dispatcher.answer(call, sink, response.routing, response.meanwhile)
            except (RemudaError, ClientGone) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _send_ready(ready: ReadyAnswer, response: ClientResponse) -> None:
    if ready.events is None:
        await response.answer(ready.status, ((b"content-type", ready.content_type),), ready.body)
        return
    await response.begin(ready.status, ready.content_type)
    async with aclosing(ready.events) as events:
        async for data in events:
            await response.write(data)
    await response.finish()


async def _watch(request: IncomingRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.response.leave()


class InferenceRoutes:
    """What the APIs for inference cover is answered here; everything else passes on to `elsewhere`."""

    def __init__(self, elsewhere: ASGIApp, handler: InferenceHandler, apis: Sequence[ClientApi]) -> None:
        self._elsewhere = elsewhere
        self._handler = handler
        self._apis = apis
        self._endpoints = {path: endpoint for api in apis for path, endpoint in api.endpoints.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._elsewhere(scope, receive, send)
            return
        endpoint = self._endpoints.get(scope["path"])
        if endpoint is not None and scope["method"] == "POST":
            await self._handler(endpoint, scope, receive, send)
            return
        api = next((api for api in self._apis if api.covers(scope)), None)
        if api is None:
            await self._elsewhere(scope, receive, send)
        else:
            request_id = self._handler.request_id(dict(scope["headers"]))
            await api.respond(scope, receive, send, request_id)
