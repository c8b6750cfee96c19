"""OpenAI's answers to requests for embeddings and rankings, as bytes. Pure."""

import array
import base64
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from remuda.core.slices import Budget, Sliced
from remuda.inference.answers import Score, Usage, Vector
from remuda.inference.requests import EmbeddingRequest, RerankRequest

_STEPS_MAX: Final = 1 << 40  # Never reached: the budget only cuts the work into slices.
_FLOATS_PER_STEP: Final = 2
_FLOAT_DIGITS: Final = 7  # Nearly always enough for a number of 32 bits; nine always are.
_encode: Final = msgspec.json.Encoder().encode


def embedding_list(request: EmbeddingRequest, vectors: Sequence[Vector], usage: Usage) -> Sliced[bytes]:
    base64_wanted = request.encoding_format == "base64"
    data, budget = list[msgspec.Raw](), Budget("the list of embeddings", _STEPS_MAX)
    for index, vector in enumerate(vectors):
        if budget.spend(len(vector) // _FLOATS_PER_STEP):
            yield
        embedding = _packed(vector) if base64_wanted else short_floats(vector)
        data.append(msgspec.Raw(_encode({"object": "embedding", "index": index, "embedding": embedding})))
    told = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
    return _encode({"object": "list", "data": data, "model": request.model, "usage": told})


def short_floats(vector: Vector) -> list[float]:
    """Numbers of 32 bits as the shortest ones that stand for the same: 0.01, not 0.009999999776482582."""
    exact = array.array("f", vector)
    short = [float(f"{value:.{_FLOAT_DIGITS}g}") for value in exact]
    for index, (value, rounded) in enumerate(zip(exact, array.array("f", short), strict=True)):
        if value != rounded:  # A digit or two are missing.
            eight = float(f"{value:.{_FLOAT_DIGITS + 1}g}")
            same = array.array("f", (eight,))[0] == value
            short[index] = eight if same else float(f"{value:.{_FLOAT_DIGITS + 2}g}")
    return short


def rerank_answer(request: RerankRequest, scores: Sequence[Score], usage: Usage) -> bytes:
    """Best first, and no more than were asked for, whatever the backend makes of that."""
    known = [found for found in scores if 0 <= found.index < len(request.documents)]
    best = sorted(known, key=lambda found: -found.relevance)[: request.top_n or None]
    shortened = short_floats([found.relevance for found in best])
    results = [
        {"index": found.index, "relevance_score": relevance}
        | (
            {}
            if request.return_documents is False
            else {"document": {"text": request.documents[found.index]}}
        )
        for found, relevance in zip(best, shortened, strict=True)
    ]
    told = {"total_tokens": usage.total_tokens, "prompt_tokens": usage.prompt_tokens}
    return _encode({"model": request.model, "usage": told, "results": results})


def _packed(vector: Vector) -> str:
    floats = array.array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
