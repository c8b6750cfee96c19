"""The way of an inference request through the gateway: who asks, what for, of which model; then its answer.

Nothing here waits for anything but the client and the replica that answers.
"""

import asyncio
import re
from collections.abc import Mapping
from itertools import count
from typing import Final

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, TooLarge
from remuda.core.log import masked
from remuda.gateway.client_line import ClientLine, line_of
from remuda.gateway.openai.admission import Admission
from remuda.gateway.openai.errors import InvalidField
from remuda.gateway.openai.exchange import CLIENT_GONE, ClientGone, Exchange
from remuda.gateway.openai.parsing import Ask
from remuda.gateway.openai.request_log import RequestLog
from remuda.gateway.openai.running import Stopping
from remuda.gateway.services import Inference
from remuda.inference.model import Call
from remuda.router.errors import Overloaded

log = structlog.get_logger()
_SHOW_NODE: Final = b"x-remuda-show-node"  # By which an admin asks whose answer it is.
_SANE_ID: Final = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


class Defect(RemudaError):
    """A bug of ours: the log has the details."""


class Api:
    """Answers inference requests."""

    def __init__(self, inference: Inference, admission: Admission, clock: Clock, id_prefix: str) -> None:
        self._dispatcher = inference.dispatcher
        self._running = inference.running
        self._figures = inference.figures
        self._expose_node = inference.expose_node
        self._body_bytes_max = inference.body_bytes_max
        self._bodies_bytes_max = max(limits.INFERENCE_BODIES_BYTES_MAX, inference.body_bytes_max)
        self._bodies_bytes = 0  # Of all requests under way.
        self._admission = admission
        self._clock = clock
        self._log = RequestLog(clock)
        self._id_prefix = id_prefix
        self._ids = count(1)

    async def __call__(self, ask: Ask, scope: Scope, receive: Receive, send: Send) -> None:
        headers, line = dict(scope["headers"]), line_of(scope)
        exchange = Exchange(
            ask.kind, self.request_id(headers), send, line, self._clock, expose_node=self._expose_node
        )
        self._running.began(exchange)
        if line is not None:
            line.when_lost = exchange.leave
        try:
            await self._see_through(ask, headers, receive, exchange, line)
        except ClientGone:
            exchange.status = CLIENT_GONE
        finally:
            if line is not None:
                line.when_lost = None
            self._running.ended(exchange)
            self._bodies_bytes -= exchange.body_bytes
            ended_s = self._clock.monotonic()
            self._figures.answered(exchange, ended_s)
            self._log.answered(exchange, ended_s)

    def request_id(self, headers: Mapping[bytes, bytes]) -> str:
        """The client's own, if it can go into a header and a log line; else a new one."""
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        if given and _SANE_ID.fullmatch(given) and masked(given) == given:
            return given
        return f"{self._id_prefix}{next(self._ids):x}"

    async def _see_through(
        self,
        ask: Ask,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        exchange: Exchange,
        line: ClientLine | None,
    ) -> None:
        """Answer, unless the exchange is ended before."""
        try:
            await self._answer(ask, headers, receive, exchange, line)
        except asyncio.CancelledError:
            if not exchange.interrupted():
                raise
            if exchange.ended_by is None:
                raise ClientGone from None
            await exchange.fail(exchange.ended_by)

    async def _answer(
        self,
        ask: Ask,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        exchange: Exchange,
        line: ClientLine | None,
    ) -> None:
        try:
            call = await self._admit(ask, headers, receive, exchange, line)
            if line is not None:
                await self._dispatcher.answer(call, exchange, exchange.journey, exchange.meanwhile)
            else:
                await self._answer_watching(call, exchange, receive)
            await exchange.finish()
        except RemudaError as error:
            await exchange.fail(error)
        except ClientGone:
            raise
        except Exception as bug:
            log.error("inference_failed", request_id=exchange.request_id, exc_info=bug)
            await exchange.fail(Defect("internal error; the frontend's log has the details"))

    async def _admit(
        self,
        ask: Ask,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        exchange: Exchange,
        line: ClientLine | None,
    ) -> Call:
        if self._running.stopping:
            raise Stopping("this frontend is stopping", hint="ask again: another one may answer")
        key = self._admission.caller(headers)
        if key is not None:
            exchange.caller = key.name
        if _SHOW_NODE in headers and self._admission.may_see_nodes(key):
            exchange.expose_node = True
        body = await self._body(headers, receive, exchange, line)
        request = ask.parse(body)
        model = self._admission.model(request.model, key).config
        exchange.model = model.id
        call = Call(
            ask.kind,
            request,
            body,
            model,
            exchange.request_id,
            int(self._clock.now().timestamp()),
            exchange.tally,
        )
        exchange.stream = call.stream
        return call

    async def _body(
        self, headers: Mapping[bytes, bytes], receive: Receive, exchange: Exchange, line: ClientLine | None
    ) -> bytes:
        # The server has seen to it that this is a number.
        if int(headers.get(b"content-length", 0)) > self._body_bytes_max:
            raise self._too_large()
        if line is not None and (body := line.body()) is not None:
            self._count(body, exchange)
            return body
        with anyio.move_on_after(limits.INFERENCE_BODY_READ_S):
            return await self._received(receive, exchange)
        raise InvalidField(f"the body did not arrive within {limits.INFERENCE_BODY_READ_S:.0f} s")

    async def _received(self, receive: Receive, exchange: Exchange) -> bytes:
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidField("the request ended before its body did")
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            self._count(parts[-1], exchange)
        return b"".join(parts)

    def _count(self, part: bytes, exchange: Exchange) -> None:
        """A part of the body has come: refuse what is too much."""
        self._bodies_bytes += len(part)
        exchange.body_bytes += len(part)
        if exchange.body_bytes > self._body_bytes_max:
            raise self._too_large()
        if self._bodies_bytes > self._bodies_bytes_max:
            raise Overloaded("the requests under way are too large together", hint="try again in a while")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self._body_bytes_max} bytes")

    async def _answer_watching(self, call: Call, exchange: Exchange, receive: Receive) -> None:
        """Under a server that is not ours: it tells only those who ask that the client is gone."""
        failure: RemudaError | ClientGone | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, receive, exchange)
            try:
                await self._dispatcher.answer(call, exchange, exchange.journey, exchange.meanwhile)
            except (RemudaError, ClientGone) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _watch(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()
