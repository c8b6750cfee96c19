"""From the engine's single answers to the messages of backend.proto. Pure."""

import array
import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from remuda.rpc import backend_pb2 as pb

_METRIC_PREFIX = "llamacpp:"


def pooled_embedding(answer: Mapping[str, Any]) -> pb.EmbeddingResult:
    """One vector for the whole text."""
    vector = array.array("f", base64.b64decode(answer["data"][0]["embedding"]))
    if sys.byteorder == "big":
        vector.byteswap()
    return pb.EmbeddingResult(
        embeddings=vector,
        tokens=1,
        dim=len(vector),
        prompt_tokens=answer["usage"]["prompt_tokens"],
        layout=pb.EMBEDDING_LAYOUT_FINAL,
    )


def token_embeddings(answer: Sequence[Mapping[str, Any]]) -> pb.EmbeddingResult:
    """One vector for each token, from a model that does not say how to make one of them."""
    vectors: Sequence[Sequence[float]] = answer[0]["embedding"]
    return pb.EmbeddingResult(
        embeddings=[value for vector in vectors for value in vector],
        tokens=len(vectors),
        dim=len(vectors[0]),
        prompt_tokens=len(vectors),
        layout=pb.EMBEDDING_LAYOUT_PER_TOKEN,
    )


def rerank_result(answer: Mapping[str, Any], documents: Sequence[str]) -> pb.RerankResult:
    """The most relevant first."""
    usage = answer["usage"]
    ranked = sorted(answer["results"], key=lambda result: (-result["relevance_score"], result["index"]))
    return pb.RerankResult(
        usage=pb.Usage(total_tokens=usage["total_tokens"], prompt_tokens=usage["prompt_tokens"]),
        results=[
            pb.DocumentResult(
                index=result["index"],
                text=documents[result["index"]],
                relevance_score=result["relevance_score"],
            )
            for result in ranked
        ],
    )


def metrics_response(exposition: str) -> pb.MetricsResponse:
    """Of all slots together. What they work on is not told: metrics are read by others than those who ask."""
    values = dict(
        line.removeprefix(_METRIC_PREFIX).split(maxsplit=1)
        for line in exposition.splitlines()
        if line.startswith(_METRIC_PREFIX)
    )
    return pb.MetricsResponse(
        tokens_per_second=float(values.get("predicted_tokens_seconds", 0)),
        tokens_generated=int(float(values.get("tokens_predicted_total", 0))),
        prompt_tokens_processed=int(float(values.get("prompt_tokens_total", 0))),
    )
