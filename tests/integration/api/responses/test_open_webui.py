"""What Open WebUI 0.12 asks of a connection, written down from its wheel (its routers for OpenAI and Ollama,
and what it retrieves documents with) and asked again here: it reads each answer."""

import json
from typing import Any

import httpx
import pytest

from remuda.inference.answers import AnswerSink, Score, Usage
from remuda.inference.model import InferenceCall, RequestKind
from tests.integration.api.responses.scripts import Remembering, says
from tests.support.scripted_upstreams import Gateway

pytestmark = pytest.mark.anyio
WHO = {
    "Authorization": "Bearer sk-x",
    "HTTP-Referer": "https://openwebui.com/",
    "X-Title": "Open WebUI",
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Role": "admin",
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
SHOWN = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
FUNCTION = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
CALLED = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT = {
    "stream": True,
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": SHOWN},
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "call_1", "content": "blue"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "stream_options": {"include_usage": True},
    "temperature": 0.7,
    "max_tokens": 64,
}
RESPONSE = {
    "stream": True,
    "model": "m",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "what is this?"},
                {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
            ],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "blue"},
    ],
    "instructions": "Be brief.",
    "tools": [{"type": "function", **FUNCTION, "strict": False}],
    "max_output_tokens": 64,
}
TITLE = {
    "model": "m",
    "messages": [{"role": "user", "content": "A title?"}],
    "stream": False,
    "max_tokens": 9,
}
OLLAMA = {
    "model": "m:latest",
    "messages": [{"role": "user", "content": "hi", "images": ["iVBORw0KGgo="]}],
    "options": {"temperature": 0.7, "num_ctx": 4096, "num_predict": 64, "stop": ["x"]},
    "keep_alive": "5m",
    "stream": True,
}


@pytest.fixture
async def webui(served: Gateway, http: httpx.AsyncClient) -> httpx.AsyncClient:
    served.upstreams.relays = False
    http.headers.update(WHO)
    return http


async def test_it_looks_what_there_is(webui: httpx.AsyncClient) -> None:
    assert [one["id"] for one in (await webui.get("/v1/models")).json()["data"]] == ["m"]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


async def test_it_chats(served: Gateway, webui: httpx.AsyncClient) -> None:
    remembering = served.upstreams.typed = Remembering()
    told = events(await webui.post("/v1/chat/completions", json=CHAT))
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in told if event["choices"]]
    assert "".join(deltas) == "Hello 1"
    assert told[-1]["usage"]["total_tokens"] == 5
    assert [message.role for message in remembering.chats[0].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    title = await webui.post("/v1/chat/completions", json=TITLE)
    assert title.json()["choices"][0]["message"]["content"] == "Hello 2"


async def test_it_asks_for_responses_and_goes_on_with_them(served: Gateway, webui: httpx.AsyncClient) -> None:
    remembering = served.upstreams.typed = Remembering()
    told = events(await webui.post("/v1/responses", json=RESPONSE))
    done = told[-1]["response"]
    assert (told[-1]["type"], done["output"][0]["content"][0]["text"]) == ("response.completed", "Hello 1")
    again = {**RESPONSE, "input": done["output"] + RESPONSE["input"][:1], "stream": False}  # type: ignore[index]
    assert (await webui.post("/v1/responses", json=again)).json()["status"] == "completed"
    more = {"model": "m", "stream": True, "input": "and?", "previous_response_id": done["id"]}
    assert events(await webui.post("/v1/responses", json=more))[-1]["type"] == "response.completed"
    roles = [message.role for message in remembering.chats[2].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_it_chats_as_with_ollama(served: Gateway, webui: httpx.AsyncClient) -> None:
    served.upstreams.typed = says("Hello", " there")
    answer = await webui.post("/api/chat", json=OLLAMA)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "Hello there"
    assert lines[-1]["done"]


async def test_it_searches_documents(served: Gateway, webui: httpx.AsyncClient) -> None:
    async def finds(call: InferenceCall, sink: AnswerSink) -> None:
        if call.kind is RequestKind.RERANK:
            await sink.scores([Score(1, 0.75), Score(0, 0.25)], Usage(3))
        else:
            await sink.vectors([[0.5], [0.25]], Usage(2))

    served.upstreams.typed = finds
    texts = {"input": ["a", "b"], "model": "m"}
    found = (await webui.post("/v1/embeddings", json=texts)).json()
    assert [one["embedding"] for one in found["data"]] == [[0.5], [0.25]]
    embedded = (await webui.post("/api/embed", json={**texts, "truncate": True})).json()
    assert embedded["embeddings"] == [[0.5], [0.25]]
    ranked = {"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 2}
    results = (await webui.post("/v1/rerank", json=ranked)).json()["results"]
    scores = [one["relevance_score"] for one in sorted(results, key=lambda one: int(one["index"]))]
    assert scores == [0.25, 0.75]
