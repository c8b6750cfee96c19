"""Renders the typed parts of a replica's answer as Ollama's, for one request."""

from collections.abc import Sequence

from remuda.gateway.inference.text_sinks import AnswerToClient, ResponseSink, send_whole, text_sink
from remuda.gateway.ollama.rendering import OllamaTexts, Shape, Spent, embedded, one_embedding
from remuda.inference.answers import (
    TextSink,
    Usage,
    Vector,
)
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall


class OllamaSink(AnswerToClient):
    __slots__ = ("_shape", "_slicer")

    def __init__(self, call: InferenceCall, response: ResponseSink, slicer: Slicer, shape: Shape) -> None:
        super().__init__(call, response)
        self._slicer = slicer
        self._shape = shape

    def texts(self, count: int) -> TextSink:
        renderer = OllamaTexts(self._call, self._model, self._shape, self._spent)
        return text_sink(self._call, renderer, self._response, count)

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        if self._shape is Shape.EMBEDDINGS:
            await send_whole(self._response, one_embedding(vectors))
            return
        answer = await self._slicer.run(embedded(self._model, vectors, usage, self._spent()))
        await send_whole(self._response, answer)

    @property
    def _model(self) -> str:
        """As the client called it."""
        return self._call.request.model

    def _spent(self) -> Spent:
        return Spent(self._response.spent_s(), self._response.waited_s)
