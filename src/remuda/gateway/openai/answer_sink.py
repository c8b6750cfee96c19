"""Renders the typed parts of a replica's answer as OpenAI's, frames them and sends them, for one request."""

from collections.abc import Sequence
from typing import Protocol

import anyio

from remuda.gateway.openai.rendering import (
    JSON,
    SSE,
    ChatRenderer,
    Choice,
    CompletionRenderer,
    TextRenderer,
    choice_of,
    embedding_list,
    rerank_answer,
)
from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    ByteSink,
    Delta,
    FinishReason,
    MediaSink,
    Score,
    TextSink,
    Usage,
    Vector,
)
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest


class _Response(ByteSink, Protocol):
    """The response on the client's connection."""

    @property
    def begun(self) -> bool: ...


class OpenAiSink:
    """Implements inference.answers.AnswerSink, over a response on which bytes are sent."""

    __slots__ = ("_call", "_response", "_slicer")

    def __init__(self, call: InferenceCall, response: _Response, slicer: Slicer) -> None:
        self._call = call
        self._response = response
        self._slicer = slicer

    @property
    def begun(self) -> bool:
        return self._response.begun

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return self._response if written == AnswerFormat.OPENAI else None

    def texts(self, count: int) -> TextSink:
        renderer = _text_renderer(self._call)
        if self._call.stream:
            return StreamedTexts(renderer, self._response, count)
        return WholeTexts(self._call, renderer, self._response, count)

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        request = self._call.request
        assert isinstance(request, EmbeddingRequest)
        await _send_whole(self._response, await self._slicer.run(embedding_list(request, vectors, usage)))

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        request = self._call.request
        assert isinstance(request, RerankRequest)
        await _send_whole(self._response, rerank_answer(request, scores, usage))

    def media(self) -> MediaSink:
        raise AssertionError("no path of this API is answered with media yet")


class StreamedTexts:
    """Each delta is sent at once; the stream begins with the first of any answer. The end of the last answer
    is sent together with the end of the stream."""

    __slots__ = ("_begun", "_closing", "_open", "_renderer", "_response", "_turn")

    def __init__(self, renderer: TextRenderer, response: ByteSink, count: int) -> None:
        self._renderer = renderer
        self._response = response
        self._open = count
        self._turn = anyio.Lock(fast_acquire=True) if count > 1 else None
        self._begun = False
        self._closing = b""

    async def write(self, index: int, delta: Delta) -> None:
        data = self._renderer.piece(index, delta)
        if self._begun and self._turn is None:
            await self._response.write(data)
        else:
            await self._send(data)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        self._open -= 1
        closing = self._renderer.closing(index, reason, last)
        if self._open:
            await self._send(closing)
        else:
            self._closing = closing

    async def end(self, usage: Usage) -> None:
        await self._send(self._closing + self._renderer.ending(usage))

    async def _send(self, data: bytes) -> None:
        if self._turn is None:
            await self._begin_and_write(data)
            return
        async with self._turn:
            await self._begin_and_write(data)

    async def _begin_and_write(self, data: bytes) -> None:
        if not self._begun:
            await self._response.begin(200, SSE)
            self._begun = True
        await self._response.write(data)


class WholeTexts:
    """Collects all answers, and sends them together."""

    __slots__ = ("_call", "_choices", "_deltas", "_renderer", "_response")

    def __init__(self, call: InferenceCall, renderer: TextRenderer, response: ByteSink, count: int) -> None:
        self._call = call
        self._renderer = renderer
        self._response = response
        self._deltas: list[list[Delta]] = [[] for _ in range(count)]
        self._choices: dict[int, Choice] = {}

    async def write(self, index: int, delta: Delta) -> None:
        self._deltas[index].append(delta)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        self._choices[index] = choice_of(self._call, index, (*self._deltas[index], last), reason)

    async def end(self, usage: Usage) -> None:
        choices = [self._choices[index] for index in range(len(self._deltas))]
        await _send_whole(self._response, self._renderer.whole(choices, usage))


async def _send_whole(response: ByteSink, answer: bytes) -> None:
    await response.begin(200, JSON)
    await response.write(answer)


def _text_renderer(call: InferenceCall) -> TextRenderer:
    request = call.request
    if isinstance(request, ChatRequest):
        return ChatRenderer(call, request)
    assert isinstance(request, CompletionRequest)
    return CompletionRenderer(call, request)
