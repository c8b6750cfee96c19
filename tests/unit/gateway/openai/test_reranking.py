"""Rankings in Jina's and Cohere's shapes."""

import json
from typing import Any

import pytest

from remuda.core.errors import NotFound
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.openai.reranking import COHERE, JINA, CohereFormat, CohereRerank, cohere_answer
from remuda.inference.answers import AnswerFormat, Score, Usage
from remuda.inference.model import RequestKind
from remuda.inference.requests import RerankRequest
from tests.support.grpc_calls import call_of

TEXTS = {"model": "m", "query": "q", "documents": ["a", "b"]}
OBJECTS = {**TEXTS, "documents": [{"text": "a", "title": "of no use"}, "b"]}


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize("endpoint", [JINA, COHERE])
def test_documents_may_be_objects(endpoint: Any) -> None:
    known = endpoint.parse(body(**OBJECTS))
    assert known.request.documents == ["a", "b"]
    assert json.loads(known.openai_body(body(**OBJECTS))) == TEXTS, "not every server takes objects"


def test_texts_reach_servers_as_they_were_written() -> None:
    written = body(**TEXTS, truncation=True)
    assert JINA.parse(written).openai_body(written) is written


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [{"image": "x"}]}, "documents[0].text"),
        ({"documents": "a"}, "documents"),
        ({"query": None}, "query"),
        ({"top_n": -1}, "top_n"),
    ],
)
@pytest.mark.parametrize("endpoint", [JINA, COHERE])
def test_what_cannot_be_ranked_is_refused(endpoint: Any, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        endpoint.parse(body(**{**TEXTS, **changes}))
    assert caught.value.param == param


def test_cutting_documents_off_is_refused_and_null_asks_for_nothing() -> None:
    COHERE.parse(body(**TEXTS, max_tokens_per_doc=None))
    with pytest.raises(InvalidField, match="documents are read whole"):
        COHERE.parse(body(**TEXTS, max_tokens_per_doc=10))


def test_cohere_is_told_places_and_scores_best_first() -> None:
    call = call_of(RequestKind.RERANK, {**TEXTS, "top_n": 1})
    assert isinstance(call.request, RerankRequest)
    found = json.loads(cohere_answer(call, call.request, [Score(0, 0.25), Score(1, 0.75)], Usage(3, 2)))
    assert found == {
        "id": call.request_id,
        "results": [{"index": 1, "relevance_score": 0.75}],
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": 5}},
    }


def test_coheres_answers_are_never_those_of_a_server_as_they_come() -> None:
    known = COHERE.parse(body(**TEXTS))
    assert isinstance(known, CohereRerank)
    sink = known.sink(call_of(RequestKind.RERANK, TEXTS), None, None)  # type: ignore[arg-type]
    assert sink.relay(AnswerFormat.OPENAI) is None


def test_errors_have_coheres_shape() -> None:
    refused = CohereFormat().error(NotFound("there is no model 'x'"))
    assert refused.status == 404
    assert json.loads(refused.body) == {"message": "there is no model 'x'", "code": "not_found"}
