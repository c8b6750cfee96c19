"""Embeddings and rankings: what a backend is asked, and its results as OpenAI's answers. Pure."""

import array
import base64
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from remuda.core.errors import Invalid
from remuda.core.slices import Budget, Sliced
from remuda.inference.model import Call
from remuda.inference.requests import EmbeddingRequest, RerankRequest, mixed
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits

_STEPS_MAX: Final = 1 << 40  # Never reached: the budget only cuts the work into slices.
_FLOATS_PER_STEP: Final = 2
_FLOAT_DIGITS: Final = 7  # Nearly always enough for a number of 32 bits; nine always are.
_encode: Final = msgspec.json.Encoder().encode


def embedding_options(call: Call, request: EmbeddingRequest) -> Sequence[pb.PredictOptions]:
    """One for each input. Invalid when there is none, or too many."""
    given = request.input
    if mixed(given):
        raise Invalid("input mixes texts and tokens", hint="send one text, a list of texts, or tokens")
    if isinstance(given, str):
        inputs: list[str | list[int]] = [given]
    elif given and isinstance(given[0], int):
        inputs = [[token for token in given if isinstance(token, int)]]
    else:
        inputs = [item for item in given if not isinstance(item, int)]
    if not all(inputs) or not inputs:
        raise Invalid("input is empty")
    if len(inputs) > limits.INPUTS_MAX:
        raise Invalid(f"input has {len(inputs)} entries, {limits.INPUTS_MAX} are allowed")
    return [_one_embedding(call, item) for item in inputs]


def embedding_list(
    request: EmbeddingRequest, results: Sequence[pb.EmbeddingResult], prompt_tokens: int
) -> Sliced[bytes]:
    base64_wanted = request.encoding_format == "base64"
    data, budget = list[msgspec.Raw](), Budget("the list of embeddings", _STEPS_MAX)
    for index, result in enumerate(results):
        if budget.spend(len(result.embeddings) // _FLOATS_PER_STEP):
            yield
        vector = vector_of(result, request.dimensions)
        embedding = _packed(vector) if base64_wanted else short_floats(vector)
        data.append(msgspec.Raw(_encode({"object": "embedding", "index": index, "embedding": embedding})))
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return _encode({"object": "list", "data": data, "model": request.model, "usage": usage})


def short_floats(vector: Sequence[float]) -> list[float]:
    """Numbers of 32 bits as the shortest ones that stand for the same: 0.01, not 0.009999999776482582."""
    exact = array.array("f", vector)
    short = [float(f"{value:.{_FLOAT_DIGITS}g}") for value in exact]
    for index, (value, rounded) in enumerate(zip(exact, array.array("f", short), strict=True)):
        if value != rounded:  # A digit or two are missing.
            eight = float(f"{value:.{_FLOAT_DIGITS + 1}g}")
            same = array.array("f", (eight,))[0] == value
            short[index] = eight if same else float(f"{value:.{_FLOAT_DIGITS + 2}g}")
    return short


def vector_of(result: pb.EmbeddingResult, dimensions: int | None = None) -> Sequence[float]:
    """One vector. Of a model that makes one for each token it is their mean, of length one; so is what is
    left after cutting it to fewer dimensions. Invalid when there are not so many."""
    vector: Sequence[float] = result.embeddings
    packed = result.tokens
    if packed > 1 and result.dim * packed == len(vector) and result.layout != pb.EMBEDDING_LAYOUT_FINAL:
        columns = (vector[start :: result.dim] for start in range(result.dim))
        vector = _of_length_one(math.fsum(column) for column in columns)
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise Invalid(f"dimensions is {dimensions}, the model's vectors have {len(vector)}")
    return _of_length_one(vector[:dimensions])


def rerank_request(call: Call, request: RerankRequest) -> pb.RerankRequest:
    if len(request.documents) > limits.INPUTS_MAX:
        raise Invalid(f"there are {len(request.documents)} documents, {limits.INPUTS_MAX} are allowed")
    return pb.RerankRequest(
        query=request.query,
        documents=request.documents,
        top_n=request.top_n or 0,
        ModelIdentity=call.model.parameters.model,
    )


def rerank_answer(request: RerankRequest, result: pb.RerankResult) -> bytes:
    """Best first, and no more than were asked for, whatever the backend makes of that."""
    known = [found for found in result.results if 0 <= found.index < len(request.documents)]
    best = sorted(known, key=lambda found: -found.relevance_score)[: request.top_n or None]
    scores = short_floats([found.relevance_score for found in best])
    results = [
        {"index": found.index, "relevance_score": score}
        | (
            {}
            if request.return_documents is False
            else {"document": {"text": request.documents[found.index]}}
        )
        for found, score in zip(best, scores, strict=True)
    ]
    usage = {"total_tokens": result.usage.total_tokens, "prompt_tokens": result.usage.prompt_tokens}
    return _encode({"model": request.model, "usage": usage, "results": results})


def _one_embedding(call: Call, item: str | list[int]) -> pb.PredictOptions:
    options = pb.PredictOptions(
        ModelIdentity=call.model.parameters.model,
        CorrelationId=call.request_id,
        Threads=call.model.threads or 0,
    )
    if isinstance(item, str):
        options.Embeddings = item
    else:
        options.EmbeddingTokens.extend(item)
    return options


def _of_length_one(values: Iterable[float]) -> Sequence[float]:
    vector = list(values)
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else vector


def _packed(vector: Sequence[float]) -> str:
    floats = array.array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
