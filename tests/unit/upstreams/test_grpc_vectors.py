import array
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.inference.model import Kind
from remuda.inference.requests import EmbeddingRequest, RerankRequest
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.vectors import (
    embedding_list,
    embedding_options,
    rerank_answer,
    rerank_request,
    short_floats,
    vector_of,
)
from tests.support.grpc_calls import call_of


def _inputs(given: object) -> list[str | list[int]]:
    call = call_of(Kind.EMBEDDING, {"input": given})
    assert isinstance(call.request, EmbeddingRequest)
    asked = embedding_options(call, call.request)
    assert {options.ModelIdentity for options in asked} == {"m.bin"}
    return [options.Embeddings or list(options.EmbeddingTokens) for options in asked]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_each_input_is_asked_for_by_itself(given: object, asked: object) -> None:
    assert _inputs(given) == asked


@pytest.mark.parametrize("given", ["", [], [""], [[]], ["a", 1], ["a"] * (limits.INPUTS_MAX + 1)], ids=repr)
def test_an_input_that_means_nothing_is_refused(given: object) -> None:
    with pytest.raises(Invalid, match="input"):
        _inputs(given)


def test_vectors_are_written_as_floats_of_32_bits() -> None:
    request = call_of(Kind.EMBEDDING, {"input": "a"}).request
    assert isinstance(request, EmbeddingRequest)
    result = pb.EmbeddingResult(embeddings=[0.01, 1, -0.5, 1e-7])
    assert b"[0.01,1.0,-0.5,1e-7]" in at_once(embedding_list(request, [result], 1))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_short_floats_stand_for_the_same_numbers(vector: list[float]) -> None:
    assert array.array("f", short_floats(vector)) == array.array("f", vector)


def test_a_finished_vector_stays_as_it_is() -> None:
    result = pb.EmbeddingResult(embeddings=[3, 4], tokens=2, dim=1, layout=pb.EMBEDDING_LAYOUT_FINAL)

    assert list(vector_of(result)) == [3, 4]


def test_vectors_for_tokens_become_their_mean_of_length_one() -> None:
    result = pb.EmbeddingResult(embeddings=[3, 0, 0, 4], tokens=2, dim=2)

    assert vector_of(result) == pytest.approx([0.6, 0.8])


def test_fewer_dimensions_are_the_first_ones_of_length_one() -> None:
    result = pb.EmbeddingResult(embeddings=[3, 4, 12])

    assert vector_of(result, 2) == pytest.approx([0.6, 0.8])


def test_more_dimensions_than_there_are_cannot_be_had() -> None:
    with pytest.raises(Invalid, match="dimensions is 4, the model's vectors have 3"):
        vector_of(pb.EmbeddingResult(embeddings=[3, 4, 12]), 4)


def test_documents_are_ranked_by_the_model_that_is_meant_and_no_other() -> None:
    call = call_of(Kind.RERANK, {"query": "q", "documents": ["a"]})
    assert isinstance(call.request, RerankRequest)

    assert rerank_request(call, call.request).ModelIdentity == "m.bin"


def _ranked(**body: object) -> Any:
    call = call_of(Kind.RERANK, {"query": "q", "documents": ["a", "b", "c"], **body})
    assert isinstance(call.request, RerankRequest)
    found = [pb.DocumentResult(index=i, relevance_score=s) for i, s in ((0, 0.25), (2, 0.75), (9, 1.0))]
    return json.loads(rerank_answer(call.request, pb.RerankResult(results=found)))["results"]


def test_the_best_comes_first_and_what_was_not_asked_about_not_at_all() -> None:
    assert _ranked() == [
        {"index": 2, "relevance_score": 0.75, "document": {"text": "c"}},
        {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}},
    ]


def test_no_more_are_told_than_were_asked_for() -> None:
    assert [found["index"] for found in _ranked(top_n=1)] == [2]


def test_documents_are_left_out_when_nobody_wants_them() -> None:
    assert "document" not in _ranked(return_documents=False)[0]


def test_too_many_documents_are_refused() -> None:
    call = call_of(Kind.RERANK, {"query": "q", "documents": ["d"] * (limits.INPUTS_MAX + 1)})
    assert isinstance(call.request, RerankRequest)

    with pytest.raises(Invalid, match="documents"):
        rerank_request(call, call.request)
