"""OpenAI's API: requests below /v1 leave the way of all others here. Each is admitted (who asks, what for, of
which model), answered, counted and logged.

Nothing here waits for anything but the client and the replica that answers.
"""

import asyncio
import re
from collections.abc import Mapping
from itertools import count
from typing import Final

import anyio
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.accounts.keys import ApiKey
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import Internal, RemudaError
from remuda.core.log import masked
from remuda.gateway.client_response import CLIENT_GONE, ClientGone, ClientResponse
from remuda.gateway.openai.admission import Admission
from remuda.gateway.openai.answer_sink import OpenAiSink
from remuda.gateway.openai.incoming import (
    ASKS,
    PREFIX,
    Ask,
    Bodies,
    IncomingRequest,
    check_complexity,
    parsed,
)
from remuda.gateway.openai.model_list import MODELS, respond
from remuda.gateway.openai.rendering import OPENAI
from remuda.gateway.openai.request_records import RequestLog
from remuda.gateway.requests_under_way import FrontendStopping
from remuda.gateway.server import line_of
from remuda.gateway.services import Inference, Services
from remuda.inference.large_bodies import CHEAP_BYTES_MAX, Slicer, check_json_cost
from remuda.inference.model import InferenceCall, Request
from remuda.router.loading import ModelUnknown
from remuda.router.table import RoutedModel

log = structlog.get_logger()
_SHOW_NODE: Final = b"x-remuda-show-node"  # By which an admin asks whose answer it is.
_SANE_ID: Final = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


class Api:
    """Answers inference requests."""

    def __init__(self, inference: Inference, admission: Admission, clock: Clock, id_prefix: str) -> None:
        self._dispatcher = inference.dispatcher
        self._running = inference.running
        self._figures = inference.figures
        self._expose_node = inference.expose_node
        self._refresh_models = inference.refresh_models
        self._bodies = Bodies(inference.body_bytes_max)
        self._admission = admission
        self._clock = clock
        self._log = RequestLog(clock)
        self._slicer = Slicer(clock)
        self._id_prefix = id_prefix
        self._ids = count(1)

    async def __call__(self, ask: Ask, scope: Scope, receive: Receive, send: Send) -> None:
        headers, line = dict(scope["headers"]), line_of(scope)
        response = ClientResponse(
            ask.kind, self.request_id(headers), send, line, self._clock, OPENAI, expose_node=self._expose_node
        )
        self._running.began(response)
        if line is not None:
            line.when_lost = response.leave
        try:
            await self._run(IncomingRequest(ask, headers, receive, line, response))
        except ClientGone:
            response.status = CLIENT_GONE
        finally:
            if line is not None:
                line.when_lost = None
            self._running.ended(response)
            self._bodies.forget(response)
            ended_s = self._clock.monotonic()
            self._figures.answered(response, ended_s)
            self._log.answered(response, ended_s)

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
            call = await self._admit(request)
            sink = OpenAiSink(call, response, self._slicer)
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

    async def _admit(self, request: IncomingRequest) -> InferenceCall:
        if self._running.stopping:
            raise FrontendStopping("this frontend is stopping", hint="ask again: another one may answer")
        ask, response = request.ask, request.response
        key = self._admission.asker(request.headers)
        if key is not None:
            response.caller = key.name
        if _SHOW_NODE in request.headers and self._admission.may_see_nodes(key):
            response.expose_node = True
        body = await self._bodies.read(request)
        parsed = ask.parse(body) if len(body) <= CHEAP_BYTES_MAX else await self._parsed_slowly(ask, body)
        await self._slicer.run(check_complexity(parsed))
        entry = await self._model(parsed.model, key)
        model = entry.config
        response.model = model.id
        created = int(self._clock.now().timestamp())
        call = InferenceCall(
            ask.kind, parsed, body, model, response.request_id, created, response.tally, entry.context
        )
        response.stream = call.stream
        return call

    async def _model(self, name: str, key: ApiKey | None) -> RoutedModel:
        """One that was added on another frontend a moment ago is not unknown."""
        try:
            return self._admission.model(name, key)
        except ModelUnknown:
            await self._refresh_models()
            return self._admission.model(name, key)

    async def _parsed_slowly(self, ask: Ask, body: bytes) -> Request:
        """Of a body that may take long, without holding up others for long."""
        if len(body) > limits.PARSED_AT_ONCE_BYTES_MAX:
            return await parsed(ask, body, self._slicer)
        await self._slicer.run(check_json_cost(body))
        return ask.parse(body)

    async def _answer_watching(self, call: InferenceCall, sink: OpenAiSink, request: IncomingRequest) -> None:
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


async def _watch(request: IncomingRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.response.leave()


_WITHOUT_PREFIX: Final = frozenset({MODELS, *ASKS})


def served_path(path: str) -> str | None:
    """The path below /v1 that is meant, also by clients that leave /v1 out; None: one of another API."""
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        return path
    full = f"{PREFIX}{path}"
    return full if full in _WITHOUT_PREFIX or full.startswith(f"{MODELS}/") else None


class OpenAiRoutes:
    """What is below /v1 is answered here; everything else passes on to `elsewhere`."""

    def __init__(self, elsewhere: ASGIApp, services: Services, inference: Inference, clock: Clock) -> None:
        self._elsewhere = elsewhere
        self._admission = Admission(
            services.access, services.keyring, inference.tables, services.console.sessions
        )
        self._refresh_models = inference.refresh_models
        self._api = Api(inference, self._admission, clock, f"req-{services.entropy.uuid()[:13]}-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = served_path(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await self._elsewhere(scope, receive, send)
            return
        ask = ASKS.get(path)
        if ask is not None and scope["method"] == "POST":
            await self._api(ask, scope, receive, send)
        else:
            request_id = self._api.request_id(dict(scope["headers"]))
            headers, refresh_models = scope["headers"], self._refresh_models
            await respond(self._admission, refresh_models, scope["method"], path, headers, send, request_id)
