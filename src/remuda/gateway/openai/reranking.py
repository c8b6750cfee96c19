"""Rankings, in the shapes that programs ask for them: Jina's, which most servers of OpenAI's API have taken
over, and Cohere's. Pure.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from remuda.core.errors import RemudaError
from remuda.gateway.inference.api_format import headers_of, status_of
from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices, InvalidField
from remuda.gateway.inference.endpoint import ApiEndpoint
from remuda.gateway.inference.floats import short_floats
from remuda.gateway.inference.text_sinks import ResponseSink, send_whole
from remuda.gateway.openai.answer_sink import OpenAiSink
from remuda.gateway.openai.errors import ErrorResponse
from remuda.gateway.openai.rendering import OpenAiFormat, best_scores
from remuda.inference.answers import AnswerFormat, ByteSink, Score, Usage
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import NULL, ModelName, RerankRequest, openai_json

_CHOICES: Final[Choices] = {}
_absent: Final = NULL.copy
TopN = Annotated[int, Meta(ge=0, lt=1 << 31)]


class RankedDocument(Struct):
    """A document that came as an object."""

    text: str


Documents = Annotated[list[str | RankedDocument], Meta(min_length=1)]


class RerankBody(Struct, kw_only=True):
    """As Jina has it, and Cohere in its first version."""

    model: ModelName
    query: str
    documents: Documents
    top_n: TopN | None = None
    return_documents: bool | None = None


class CohereRerankBody(Struct, kw_only=True):
    model: ModelName
    query: str
    documents: Documents
    top_n: TopN | None = None
    max_tokens_per_doc: Raw = msgspec.field(default_factory=_absent)
    priority: int | None = None  # Without effect: there is one queue for all.


_JINA: Final = msgspec.json.Decoder(RerankBody)
_COHERE: Final = msgspec.json.Decoder(CohereRerankBody)


class JinaRerank(Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest."""

    request: RerankRequest
    only_texts: bool

    def openai_body(self, body: bytes) -> bytes:
        """Not every server takes documents that are objects."""
        return body if self.only_texts else openai_json(self.request)

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> OpenAiSink:
        return OpenAiSink(call, response, slicer)


class CohereRerank(Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest."""

    request: RerankRequest

    def openai_body(self, body: bytes) -> bytes:
        return openai_json(self.request)

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> "CohereSink":
        return CohereSink(call, response, slicer)


class CohereError(Struct):
    message: str
    code: str  # Ours, additive.


class CohereFormat(OpenAiFormat):
    """Errors as Cohere's clients read them."""

    def error(self, error: RemudaError) -> ErrorResponse:
        status = status_of(error)
        body = msgspec.json.encode(CohereError(error.public_text, error.code))
        return ErrorResponse(status, error.code, body, headers_of(error, status))


class CohereSink(OpenAiSink):
    __slots__ = ()

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        request = self._call.request
        assert isinstance(request, RerankRequest)
        await send_whole(self._response, cohere_answer(self._call, request, scores, usage))


def cohere_answer(
    call: InferenceCall, request: RerankRequest, scores: Sequence[Score], usage: Usage
) -> bytes:
    best = best_scores(request, scores)
    shortened = short_floats([found.relevance for found in best])
    results = [
        {"index": found.index, "relevance_score": relevance}
        for found, relevance in zip(best, shortened, strict=True)
    ]
    meta: dict[str, object] = {"api_version": {"version": "2"}}
    if usage.total_tokens:
        meta["tokens"] = {"input_tokens": usage.total_tokens}
    return msgspec.json.encode({"id": call.request_id, "results": results, "meta": meta})


def _texts(documents: Sequence[str | RankedDocument]) -> list[str]:
    return [one if isinstance(one, str) else one.text for one in documents]


def _jina(body: bytes) -> JinaRerank:
    known = decoded(_JINA, body, _CHOICES)
    request = RerankRequest(
        model=known.model,
        query=known.query,
        documents=_texts(known.documents),
        top_n=known.top_n,
        return_documents=known.return_documents,
    )
    return JinaRerank(request, all(isinstance(one, str) for one in known.documents))


def _cohere(body: bytes) -> CohereRerank:
    known = decoded(_COHERE, body, _CHOICES)
    if bytes(known.max_tokens_per_doc) != b"null":
        raise InvalidField(
            "max_tokens_per_doc: documents are read whole", "max_tokens_per_doc", hint="leave it out"
        )
    request = RerankRequest(
        model=known.model, query=known.query, documents=_texts(known.documents), top_n=known.top_n
    )
    return CohereRerank(request)


JINA: Final = ApiEndpoint(RequestKind.RERANK, OpenAiFormat(), RerankBody, _jina)
COHERE: Final = ApiEndpoint(
    RequestKind.RERANK,
    CohereFormat(),
    CohereRerankBody,
    _cohere,
    summary="Rerank documents, as Cohere has it",
)
