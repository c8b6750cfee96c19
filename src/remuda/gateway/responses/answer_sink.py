"""The answer to a request for a response, on its way to the client: streamed, or all at once. It is
kept before its end is sent, so that clients that read of the end find it."""

from collections.abc import Awaitable, Callable

from remuda.gateway.inference.text_sinks import AnswerToClient, ResponseSink, send_whole
from remuda.gateway.responses.objects import ResponseHead, ResponseResult, response_object
from remuda.gateway.responses.rendering import ResponseRenderer
from remuda.inference.answers import (
    NOTHING,
    Delta,
    FinishReason,
    TextSink,
    Usage,
)
from remuda.inference.model import InferenceCall

KeepResponse = Callable[[ResponseResult], Awaitable[bool]]
"""Stores a response. False: it could not be."""
UnixClock = Callable[[], int]  # Unix seconds.


class ResponsesSink(AnswerToClient):
    __slots__ = ("_head", "_keep", "_now")

    def __init__(
        self,
        call: InferenceCall,
        response: ResponseSink,
        head: ResponseHead,
        keep: KeepResponse | None,
        now: UnixClock,
    ) -> None:
        super().__init__(call, response)
        self._head = head
        self._keep = keep
        self._now = now

    def texts(self, count: int) -> TextSink:
        return _Texts(self._call.stream, self._response, self._head, self._keep, self._now)


class _Texts:
    """Implements inference.answers.TextSink. There is one answer to a request."""

    def __init__(
        self,
        streams: bool,
        response: ResponseSink,
        head: ResponseHead,
        keep: KeepResponse | None,
        now: UnixClock,
    ) -> None:
        self._streams = streams
        self._response = response
        self._head = head
        self._keep = keep
        self._now = now
        self._renderer = ResponseRenderer(head, streams=streams, store=keep is not None)
        self._begun = False
        self._closing = b""

    async def write(self, index: int, delta: Delta) -> None:
        if told := self._renderer.piece(delta):
            await self._send(told)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        self._closing = self._renderer.closing(reason, last)

    async def end(self, usage: Usage) -> None:
        outcome = self._renderer.outcome(usage, self._now())
        if self._streams and self._closing:
            await self._send(self._closing)
        kept = await self._keep(outcome) if self._keep is not None else False
        if self._streams:
            await self._send(self._renderer.ending(outcome, store=kept))
        else:
            await send_whole(self._response, response_object(self._head, outcome, store=kept))

    async def _send(self, data: bytes) -> None:
        if not self._begun:
            await self._response.begin(200, self._renderer.stream_type)
            self._begun = True
        await self._response.write(data)
