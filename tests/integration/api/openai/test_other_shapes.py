"""Paths beside OpenAI's own that its clients use: tokens, and rankings in Jina's and Cohere's shapes."""

from typing import Any

import httpx
import pytest

from remuda.inference.answers import AnswerSink, Score, Tokens, Usage
from remuda.inference.model import InferenceCall, RequestKind
from tests.support.scripted_upstreams import Gateway

pytestmark = pytest.mark.anyio


async def _counts_and_ranks(call: InferenceCall, sink: AnswerSink) -> None:
    if call.kind is RequestKind.TOKENIZE:
        await sink.tokens(Tokens(2, [5, 6]))
    else:
        await sink.scores([Score(0, 0.25), Score(1, 0.75)], Usage(3, 2))


@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize"])
@pytest.mark.parametrize("asked", [{"content": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}])
async def test_tokens_are_told(
    served: Gateway, client: httpx.AsyncClient, path: str, asked: dict[str, Any]
) -> None:
    served.upstreams.relays = False
    served.upstreams.typed = _counts_and_ranks
    answer = await client.post(path, json={"model": "m", **asked})
    assert answer.status_code == 200
    assert answer.json() == {"tokens": [5, 6], "count": 2, "max_model_len": None}


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("/v1/rerank", {"index": 1, "relevance_score": 0.75, "document": {"text": "b"}}),
        ("/rerank", {"index": 1, "relevance_score": 0.75, "document": {"text": "b"}}),
        ("/v2/rerank", {"index": 1, "relevance_score": 0.75}),
    ],
)
async def test_rankings_have_the_shape_of_their_path(
    served: Gateway, client: httpx.AsyncClient, path: str, first: dict[str, Any]
) -> None:
    served.upstreams.relays = False
    served.upstreams.typed = _counts_and_ranks
    answer = await client.post(path, json={"model": "m", "query": "q", "documents": [{"text": "a"}, "b"]})
    assert answer.status_code == 200
    assert answer.json()["results"][0] == first


async def test_errors_of_rankings_have_the_shape_of_their_path(client: httpx.AsyncClient) -> None:
    asked = {"model": "nobody", "query": "q", "documents": ["a"]}
    jina, cohere = [await client.post(path, json=asked) for path in ("/v1/rerank", "/v2/rerank")]
    assert (jina.status_code, cohere.status_code) == (404, 404)
    assert jina.json()["error"]["code"] == cohere.json()["code"]
    assert cohere.json()["message"].startswith("there is no model 'nobody'")


async def test_a_path_of_coheres_takes_only_posts(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v2/rerank")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("realtime/sessions", "realtime"),
        ("batches", "batch"),
        ("files", "files"),
        ("moderations", "moderation"),
        ("fine_tuning/jobs", "fine-tuning"),
        ("assistants", "Assistants"),
        ("threads/t/runs", "Assistants"),
        ("vector_stores", "vector stores"),
        ("videos", "videos"),
    ],
)
async def test_apis_that_are_not_offered_are_named(client: httpx.AsyncClient, path: str, named: str) -> None:
    answer = await client.post(f"/v1/{path}", json={})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "no_such_endpoint")
    assert f"OpenAI's {named} API is not offered here" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_latest_behind_a_name_is_the_model_of_this_name(
    served: Gateway, client: httpx.AsyncClient, path: str
) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post(path, json=asked | {"model": "m:latest"})).status_code == 200
    assert (await client.get("/v1/models/m:latest")).json()["id"] == "m"
    missing = await client.post(path, json=asked | {"model": "nobody:latest"})
    assert missing.status_code == 404
    assert "'nobody:latest'" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("effort", "status"), [("minimal", 200), ("xhigh", 200), ("none", 200), ("huge", 400)]
)
async def test_how_much_is_thought_has_its_words(client: httpx.AsyncClient, effort: str, status: int) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort}
    answer = await client.post("/v1/chat/completions", json=chat)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "reasoning_effort"
