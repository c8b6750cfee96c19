import pytest

from remuda.core.errors import Invalid
from remuda.core.slices import at_once
from remuda.inference.model import RequestKind
from remuda.inference.requests import EmbeddingRequest, RerankRequest
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.embeddings import embedding_options, rerank_request, vector_of, vectors_of
from tests.support.grpc_calls import call_of


def _inputs(given: object) -> list[str | list[int]]:
    call = call_of(RequestKind.EMBEDDING, {"input": given})
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


def test_there_is_a_vector_for_each_result() -> None:
    results = [
        pb.EmbeddingResult(embeddings=[3, 4]),
        pb.EmbeddingResult(embeddings=[0, 0, 3, 4], tokens=2, dim=2),
    ]

    as_they_are, cut = at_once(vectors_of(results, None)), at_once(vectors_of(results, 1))

    assert [list(vector) for vector in as_they_are] == [[3, 4], pytest.approx([0.6, 0.8])]
    assert [list(vector) for vector in cut] == [[1], [1]]


def test_documents_are_ranked_by_the_model_that_is_meant_and_no_other() -> None:
    call = call_of(RequestKind.RERANK, {"query": "q", "documents": ["a"]})
    assert isinstance(call.request, RerankRequest)

    assert rerank_request(call, call.request).ModelIdentity == "m.bin"


def test_too_many_documents_are_refused() -> None:
    call = call_of(RequestKind.RERANK, {"query": "q", "documents": ["d"] * (limits.INPUTS_MAX + 1)})
    assert isinstance(call.request, RerankRequest)

    with pytest.raises(Invalid, match="documents"):
        rerank_request(call, call.request)
