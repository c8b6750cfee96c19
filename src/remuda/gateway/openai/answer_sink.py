"""Renders the typed parts of a replica's answer as OpenAI's, for one request."""

from collections.abc import Sequence

from remuda.gateway.inference.text_answers import TextRenderer
from remuda.gateway.inference.text_sinks import AnswerToClient, ResponseSink, send_whole, text_sink
from remuda.gateway.openai.rendering import ChatRenderer, CompletionRenderer, embedding_list, rerank_answer
from remuda.gateway.openai.tokens import tokens_answer
from remuda.inference.answers import AnswerFormat, ByteSink, Score, TextSink, Tokens, Usage, Vector
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest


class OpenAiSink(AnswerToClient):
    """Relays what is in OpenAI's format already."""

    __slots__ = ("_slicer",)

    def __init__(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> None:
        super().__init__(call, response)
        self._slicer = slicer

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return self._response if written == AnswerFormat.OPENAI else None

    def texts(self, count: int) -> TextSink:
        return text_sink(self._call, _text_renderer(self._call), self._response, count)

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        request = self._call.request
        assert isinstance(request, EmbeddingRequest)
        await send_whole(self._response, await self._slicer.run(embedding_list(request, vectors, usage)))

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        request = self._call.request
        assert isinstance(request, RerankRequest)
        await send_whole(self._response, rerank_answer(request, scores, usage))

    async def tokens(self, tokens: Tokens) -> None:
        await send_whole(self._response, tokens_answer(self._call, tokens))


def _text_renderer(call: InferenceCall) -> TextRenderer:
    request = call.request
    if isinstance(request, ChatRequest):
        return ChatRenderer(call, request)
    assert isinstance(request, CompletionRequest)
    return CompletionRenderer(call, request)
