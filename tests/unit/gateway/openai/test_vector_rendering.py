import array
import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.slices import at_once
from remuda.gateway.openai.vector_rendering import embedding_list, rerank_answer, short_floats
from remuda.inference.answers import Score, Usage
from remuda.inference.model import RequestKind
from remuda.inference.requests import EmbeddingRequest, RerankRequest
from tests.support.grpc_calls import call_of


def _embeddings(vector: list[float], **body: object) -> bytes:
    request = call_of(RequestKind.EMBEDDING, {"input": "a", **body}).request
    assert isinstance(request, EmbeddingRequest)
    return at_once(embedding_list(request, [vector], Usage(1)))


def test_vectors_are_written_as_floats_of_32_bits() -> None:
    (as_float,) = array.array("f", [0.01])

    assert b"[0.01,1.0,-0.5,1e-7]" in _embeddings([as_float, 1, -0.5, 1e-7])


def test_vectors_are_packed_when_asked_for() -> None:
    answer = json.loads(_embeddings([1, 2], encoding_format="base64"))

    assert base64.b64decode(answer["data"][0]["embedding"]) == b"\0\0\x80\x3f\0\0\0\x40"


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_short_floats_stand_for_the_same_numbers(vector: list[float]) -> None:
    assert array.array("f", short_floats(vector)) == array.array("f", vector)


def _ranking(**body: object) -> Any:
    request = call_of(RequestKind.RERANK, {"query": "q", "documents": ["a", "b", "c"], **body}).request
    assert isinstance(request, RerankRequest)
    scores = [Score(0, 0.25), Score(2, 0.75), Score(9, 1.0)]
    return json.loads(rerank_answer(request, scores, Usage(3, 2)))


def test_the_best_comes_first_and_what_was_not_asked_about_not_at_all() -> None:
    assert _ranking() == {
        "model": "m",
        "usage": {"total_tokens": 5, "prompt_tokens": 3},
        "results": [
            {"index": 2, "relevance_score": 0.75, "document": {"text": "c"}},
            {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}},
        ],
    }


def test_no_more_are_told_than_were_asked_for() -> None:
    assert [found["index"] for found in _ranking(top_n=1)["results"]] == [2]


def test_documents_are_left_out_when_nobody_wants_them() -> None:
    assert "document" not in _ranking(return_documents=False)["results"][0]
