"""Renders the typed parts of a replica's answer as Anthropic's, for one request."""

from collections.abc import Sequence

import msgspec

from remuda.gateway.anthropic.rendering import MessageRenderer
from remuda.gateway.inference.text_sinks import ResponseSink, send_whole, text_sink
from remuda.inference.answers import (
    AnswerFormat,
    ByteSink,
    MediaSink,
    Score,
    TextSink,
    Tokens,
    Usage,
    Vector,
)
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest


class AnthropicSink:
    """Implements inference.answers.AnswerSink, over a response on which bytes are sent."""

    __slots__ = ("_call", "_response", "_shows_thinking")

    def __init__(self, call: InferenceCall, response: ResponseSink, *, shows_thinking: bool) -> None:
        self._call = call
        self._response = response
        self._shows_thinking = shows_thinking

    @property
    def begun(self) -> bool:
        return self._response.begun

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    def texts(self, count: int) -> TextSink:
        request = self._call.request
        assert isinstance(request, ChatRequest)
        renderer = MessageRenderer(self._call, request, shows_thinking=self._shows_thinking)
        return text_sink(self._call, renderer, self._response, count)

    async def tokens(self, tokens: Tokens) -> None:
        await send_whole(self._response, msgspec.json.encode({"input_tokens": tokens.count}))

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        raise AssertionError("no path of this API is answered with vectors")

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        raise AssertionError("no path of this API is answered with scores")

    def media(self) -> MediaSink:
        raise AssertionError("no path of this API is answered with media")
