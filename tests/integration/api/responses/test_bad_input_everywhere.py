"""Bodies that make no sense, in every API whose bodies are JSON: 4xx in that API's own shape, never more, and
nothing is left in flight. Streams that are abandoned at any event stop the replica."""

import json
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from remuda.inference.answers import AnswerSink, Delta, ToolCallDelta
from remuda.inference.failures import RequestUnsupported
from remuda.inference.model import InferenceCall
from tests.support.raw_http import post, raw_client
from tests.support.scripted_upstreams import Gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
Body = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
GOOD: dict[str, Body] = {
    "/v1/chat/completions": {"messages": HI, "tools": [TOOL], "stop": ["x"], "seed": 1, "stream": False},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1, "stream": False},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "store": False,
        "stream": False,
    },
    "/v1/tokenize": {"messages": HI, "tools": [TOOL]},
    "/v1/rerank": {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
    "/v2/rerank": {"query": "q", "documents": ["a"], "top_n": 1},
    "/v1/embeddings": {"input": ["hi"], "dimensions": 3},
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 5,
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "stream": False,
    },
    "/v1/messages/count_tokens": {"messages": HI, "system": "Be brief."},
    "/api/chat": {"messages": HI, "tools": [TOOL], "options": {"seed": 1}, "stream": False},
    "/api/generate": {"prompt": "hi", "format": "json", "stream": False},
    "/api/embed": {"input": ["hi"]},
}
REQUIRED = {
    "/v1/chat/completions": ("model", "messages"),
    "/v1/completions": ("model", "prompt"),
    "/v1/responses": ("model", "input"),
    "/v1/tokenize": ("model", "messages"),
    "/v1/rerank": ("model", "query", "documents"),
    "/v2/rerank": ("model", "query", "documents"),
    "/v1/embeddings": ("model", "input"),
    "/v1/messages": ("model", "messages", "max_tokens"),
    "/v1/messages/count_tokens": ("model", "messages"),
    "/api/chat": ("model",),
    "/api/generate": ("model",),
    "/api/embed": ("model",),
}
STRANGE: tuple[Any, ...] = (
    7.5,
    -1,
    True,
    "\x00",
    "x" * 70_000,
    [],
    [[]],
    [None],
    {},
    {"a": {"b": 1}},
    10**40,
)


def said(path: str, answer: Body) -> str:
    """What is wrong, in the shape of the path's API."""
    if path.startswith("/v1/messages"):
        assert answer["type"] == "error"
        assert answer["error"]["type"]
    if path == "/v2/rerank":
        return str(answer["message"])
    return str(answer["error"] if path.startswith("/api/") else answer["error"]["message"])


def changed(good: Any) -> Iterator[Any]:
    """The same with something strange in each place, one after the other."""
    yield from STRANGE
    members = good.items() if isinstance(good, dict) else enumerate(good) if isinstance(good, list) else ()
    for place, member in list(members):
        for other in changed(member) if isinstance(member, dict | list) else STRANGE:
            copy = good.copy()
            copy[place] = other
            yield copy


async def still_well(served: Gateway) -> None:
    await wait_until(lambda: not len(served.running), within=20, what="the end of all requests")
    assert not served.ledger.own()


@pytest.mark.parametrize("path", GOOD)
async def test_whatever_stands_in_a_field_is_answered_or_refused(
    served: Gateway, http: httpx.AsyncClient, path: str
) -> None:
    served.upstreams.relays = False
    served.upstreams.typed = _refuses
    for body in changed({"model": "m", **GOOD[path]}):
        answer = await http.post(path, content=json.dumps(body).encode())
        if answer.status_code == 200 and path.startswith("/api/"):  # With nothing to say a model is loaded.
            continue
        assert 400 <= answer.status_code < 500, (body, answer.text)
        assert said(path, answer.json()), body
    await still_well(served)


async def _refuses(call: InferenceCall, sink: AnswerSink) -> None:
    raise RequestUnsupported("a test does not do this")


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in REQUIRED for name in REQUIRED[path]])
async def test_what_is_missing_is_named(http: httpx.AsyncClient, path: str, name: str) -> None:
    body = {"model": "m", **GOOD[path]}
    del body[name]
    answer = await http.post(path, json=body)
    assert answer.status_code == 400
    assert name in said(path, answer.json())


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"model": "\xff"}',
        b'{"model":' + b"[" * 100_000,
        b'{"model":"m","stream":"\\ud8"}',
    ],
    ids=["empty", "cut-off", "a-list", "a-number", "no-utf8", "deep", "half-a-pair"],
)
async def test_what_is_no_json_is_refused(http: httpx.AsyncClient, path: str, body: bytes) -> None:
    answer = await http.post(path, content=body)
    assert answer.status_code == 400
    assert said(path, answer.json())


STREAMS: dict[str, Body] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 100},
    "/api/chat": {"messages": HI},
}
SAID = (
    Delta(reasoning="Hm"),
    Delta("Hello"),
    Delta(" there"),
    Delta(tool_calls=[ToolCallDelta(0, "c", "look")]),
)


@pytest.mark.parametrize("events", range(len(SAID) + 1))
@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_that_is_abandoned_at_any_event_stops_the_replica(
    served: Gateway, path: str, events: int
) -> None:
    told, stopped = anyio.Event(), anyio.Event()

    async def tells(call: InferenceCall, sink: AnswerSink) -> None:
        texts = sink.texts(1)
        try:
            for delta in SAID[:events]:
                await texts.write(0, delta)
            told.set()
            await anyio.sleep_forever()
        finally:
            stopped.set()

    served.upstreams.relays = False
    served.upstreams.typed = tells
    async with raw_client(served.port) as raw:
        await raw.send(post(path, {"model": "m", "stream": True, **STREAMS[path]}))
        await told.wait()
        raw.reset()
    with anyio.fail_after(20):
        await stopped.wait()
    await still_well(served)
    assert told.is_set()
