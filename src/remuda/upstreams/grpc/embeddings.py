"""Embeddings and rankings: what a backend is asked, and the vectors in its results. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.slices import Budget, Sliced
from remuda.inference.answers import Vector
from remuda.inference.model import InferenceCall
from remuda.inference.requests import EmbeddingRequest, RerankRequest, mixed
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits

_STEPS_MAX: Final = 1 << 40  # Never reached: the budget only cuts the work into slices.
_FLOATS_PER_STEP: Final = 2


def embedding_options(call: InferenceCall, request: EmbeddingRequest) -> Sequence[pb.PredictOptions]:
    """One for each input. Invalid when there is none, or too many."""
    given = request.input
    if mixed(given):
        raise Invalid(
            "input mixes texts and tokens", hint="send one text, a list of texts, or tokens", param="input"
        )
    if isinstance(given, str):
        inputs: list[str | list[int]] = [given]
    elif given and isinstance(given[0], int):
        inputs = [[token for token in given if isinstance(token, int)]]
    else:
        inputs = [item for item in given if not isinstance(item, int)]
    if not all(inputs) or not inputs:
        raise Invalid("input is empty", param="input")
    if len(inputs) > limits.INPUTS_MAX:
        raise Invalid(f"input has {len(inputs)} entries, {limits.INPUTS_MAX} are allowed", param="input")
    return [_one_embedding(call, item) for item in inputs]


def vectors_of(results: Sequence[pb.EmbeddingResult], dimensions: int | None) -> Sliced[Sequence[Vector]]:
    """One for each result. Invalid when there are not so many dimensions."""
    made, budget = list[Vector](), Budget("the list of embeddings", _STEPS_MAX)
    for result in results:
        as_it_is = dimensions is None and result.tokens <= 1
        if not as_it_is and budget.spend(len(result.embeddings) // _FLOATS_PER_STEP):
            yield
        made.append(vector_of(result, dimensions))
    return made


def vector_of(result: pb.EmbeddingResult, dimensions: int | None = None) -> Vector:
    """One vector. Of a model that makes one for each token it is their mean, of length one; so is what is
    left after cutting it to fewer dimensions. Invalid when there are not so many."""
    vector: Vector = result.embeddings
    packed = result.tokens
    if packed > 1 and result.dim * packed == len(vector) and result.layout != pb.EMBEDDING_LAYOUT_FINAL:
        columns = (vector[start :: result.dim] for start in range(result.dim))
        vector = _of_length_one(math.fsum(column) for column in columns)
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise Invalid(
            f"dimensions is {dimensions}, the model's vectors have {len(vector)}", param="dimensions"
        )
    return _of_length_one(vector[:dimensions])


def rerank_request(call: InferenceCall, request: RerankRequest) -> pb.RerankRequest:
    if len(request.documents) > limits.INPUTS_MAX:
        raise Invalid(
            f"there are {len(request.documents)} documents, {limits.INPUTS_MAX} are allowed",
            param="documents",
        )
    return pb.RerankRequest(
        query=request.query,
        documents=request.documents,
        top_n=request.top_n or 0,
        ModelIdentity=call.model.parameters.model,
    )


def _one_embedding(call: InferenceCall, item: str | list[int]) -> pb.PredictOptions:
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


def _of_length_one(values: Iterable[float]) -> Vector:
    vector = list(values)
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else vector
