"""Chat through the gateway on a real socket."""

import httpx
import pytest

from tests.support.scripted_upstreams import chunk, whole

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "hi"}]
ASK = {"model": "m", "messages": MESSAGES}


async def test_a_whole_answer_has_its_length(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ASK)
    assert (reply.status_code, reply.content) == (200, whole("Hello there"))
    assert reply.headers["content-length"] == str(len(reply.content))
    assert reply.headers["x-request-id"].startswith("req-")


async def test_a_stream_is_passed_on_as_it_is_written(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ASK | {"stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.content == chunk("Hello") + chunk(" there") + b"data: [DONE]\n\n"


async def test_an_unknown_model_is_not_found_and_similar_names_are_told(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ASK | {"model": "M"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (
        404,
        "model_not_found",
        "invalid_request_error",
    )
    assert "did you mean m?" in error["message"]
