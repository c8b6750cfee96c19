"""Renders the typed parts of a replica's answer as Anthropic's, for one request."""

import msgspec

from remuda.gateway.anthropic.rendering import MessageRenderer
from remuda.gateway.inference.text_sinks import AnswerToClient, ResponseSink, send_whole, text_sink
from remuda.inference.answers import (
    TextSink,
    Tokens,
)
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest


class AnthropicSink(AnswerToClient):
    __slots__ = ("_shows_thinking",)

    def __init__(self, call: InferenceCall, response: ResponseSink, *, shows_thinking: bool) -> None:
        super().__init__(call, response)
        self._shows_thinking = shows_thinking

    def texts(self, count: int) -> TextSink:
        request = self._call.request
        assert isinstance(request, ChatRequest)
        renderer = MessageRenderer(self._call, request, shows_thinking=self._shows_thinking)
        return text_sink(self._call, renderer, self._response, count)

    async def tokens(self, tokens: Tokens) -> None:
        await send_whole(self._response, msgspec.json.encode({"input_tokens": tokens.count}))
