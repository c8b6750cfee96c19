"""Requests that make no sense, sent to a real backend's model: refused in OpenAI's shape, and never more than
that."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from remuda.host.folder import DataFolder
from tests.integration.serving.asking import PATIENCE_S, add_echo, chat, chat_body
from tests.integration.serving.site import add_model, answered
from tests.support.models import tiny_model
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend

Body = dict[str, Any]
CYCLE: Body = {"$ref": "#/$defs/node", "$defs": {"node": {"$ref": "#/$defs/node"}}}
TREE: Body = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}


@pytest.fixture(scope="module")
def up(alone: Frontend) -> Iterator[Frontend]:
    add_echo(alone, "sound-model")
    answered(chat(alone, "sound-model"))
    yield alone
    assert "Traceback" not in alone.log


def send(up: Frontend, body: bytes | Body) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        f"{up.url}/v1/chat/completions",
        content=content,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE_S,
        trust_env=False,
        verify=PLAIN,
    )


def sound(**changes: Any) -> Body:
    return chat_body("sound-model", **changes)


def tool(parameters: object) -> Body:
    return {"type": "function", "function": {"name": "look", "parameters": parameters, "strict": True}}


def answer_in(schema: object) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


WRONG: dict[str, Body | bytes] = {
    "no-body": b"",
    "no-json": b"{",
    "no-object": b"[]",
    "no-utf8": b'{"model": "sound-model", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "half-a-pair": b'{"model": "sound-model", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "deep": b'{"model": "sound-model", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no-messages": {"model": "sound-model"},
    "empty-messages": sound(messages=[]),
    "messages-no-list": sound(messages="hello"),
    "message-no-object": sound(messages=["hello"]),
    "unknown-role": sound(messages=[{"role": "wizard", "content": "hello"}]),
    "content-a-number": sound(messages=[{"role": "user", "content": 7}]),
    "unknown-part": sound(messages=[{"role": "user", "content": [{"type": "smell", "smell": "roses"}]}]),
    "negative-max-tokens": sound(max_tokens=-1),
    "huge-max-tokens": sound(max_tokens=10**30),
    "max-tokens-a-text": sound(max_tokens="ten"),
    "temperature-a-text": sound(temperature="hot"),
    "no-number": json.dumps(sound(temperature=float("nan"))).encode(),
    "n-of-zero": sound(n=0),
    "n-of-millions": sound(n=10**6),
    "stream-a-text": sound(stream="yes"),
    "stop-an-object": sound(stop={"a": 1}),
    "tools-no-list": sound(tools={"a": 1}),
    "tool-without-a-name": sound(tools=[{"type": "function", "function": {}}]),
    "tool-cycle": sound(tools=[tool(CYCLE)]),
    "values-behind-references": sound(
        response_format=answer_in(
            {
                "$defs": {"e": {"enum": [f"value{number}" for number in range(60_000)]}},
                "properties": {f"p{number}": {"$ref": "#/$defs/e", "x": number} for number in range(200)},
            }
        )
    ),
    "types-without-end": sound(response_format=answer_in({"type": ["object"] * 60_000})),
    "tool-with-values-without-end": sound(tools=[tool({"properties": {"a": {"enum": [*range(60_000)]}}})]),
    "grammar-of-parentheses": sound(grammar="root ::= " + "(" * 100_000),
    "grammar-of-alternatives": sound(grammar="root ::= " + '"a" | ' * 60_000 + '"a"'),
    "grammar-that-doubles": sound(grammar='root ::= s\ns ::= [a-z ] s "a" | [a-z ] s "b"'),
    "calls-without-end": b'{"model":"sound-model","messages":[{"role":"assistant","tool_calls":[%s{}]}]}'
    % (b"{}," * 300_000),
    "picture-of-semicolons": sound(
        messages=[
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:" + ";" * 1_000_000}}],
            }
        ]
    ),
    "tool-schema-a-list": sound(tools=[tool([1, 2])]),
    "chosen-tool-is-none": sound(
        tools=[tool({})], tool_choice={"type": "function", "function": {"name": "other"}}
    ),
    "format-unknown": sound(response_format={"type": "poem"}),
    "format-cycle": sound(response_format=answer_in(CYCLE)),
    "format-tree": sound(response_format=answer_in(TREE)),
    "format-deep": json.dumps(sound(response_format=answer_in(None)))
    .encode()
    .replace(b"null", b'{"items":' * 5_000 + b"{}" + b"}" * 5_000),
    "format-dangling": sound(response_format=answer_in({"$ref": "#/$defs/none"})),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_in_openais_shape(up: Frontend, name: str) -> None:
    assert_refused(send(up, WRONG[name]))


@pytest.mark.parametrize("name", [name for name, body in WRONG.items() if isinstance(body, dict)])
def test_it_is_refused_with_a_status_where_a_stream_was_asked_for(up: Frontend, name: str) -> None:
    body = WRONG[name]
    assert isinstance(body, dict)
    assert_refused(send(up, {"stream": True, **body}))


PLAIN_TOOL: Body = {"name": "look", "parameters": CYCLE, "strict": True}
CYCLES: dict[str, Body] = {
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **PLAIN_TOOL}], "store": False},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "tools": [{"name": "look", "input_schema": CYCLE, "strict": True}],
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": PLAIN_TOOL}],
        "format": CYCLE,
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CYCLES)
def test_a_schema_without_end_is_refused_in_every_api(up: Frontend, path: str, stream: bool) -> None:
    body = {"model": "sound-model", "stream": stream, **CYCLES[path]}
    answer = httpx.post(up.url + path, json=body, timeout=PATIENCE_S, trust_env=False, verify=PLAIN)
    assert 400 <= answer.status_code < 500, answer.text
    assert "error" in answer.json()


def assert_refused(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_unknown_model_is_not_found_and_the_similar_one_is_named(up: Frontend) -> None:
    answer = chat(up, "sound-modell")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "sound-model?" in answer.json()["error"]["message"]


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_body_of_200_mb_is_refused_while_it_comes(up: Frontend, announced: bool) -> None:
    size, piece = 200 << 20, b"x" * (1 << 20)
    pieces = (piece for _ in range(size // len(piece)))
    length = {"Content-Length": str(size)} if announced else {}
    try:
        answer = httpx.post(
            f"{up.url}/v1/chat/completions",
            content=pieces,
            headers=length,
            timeout=PATIENCE_S,
            trust_env=False,
            verify=PLAIN,
        )
    except httpx.WriteError:  # It had hung up before all was sent; what it said is lost in this client.
        return
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"


@pytest.fixture(scope="module")
def tiny(up: Frontend) -> str:
    """A real engine, with a model that never comes to an end."""
    models = DataFolder(up.data_dir).models
    models.mkdir(exist_ok=True)
    shutil.copy(tiny_model(), models / "tiny.gguf")
    parameters = {"model": "tiny.gguf", "ignore_eos": True}
    limits = ["step_seconds:1"]
    add_model(up, "tiny", "llama-cpp", context_size=200, threads=1, options=limits, parameters=parameters)
    return "tiny"


def test_answer_that_fills_the_context_was_cut(up: Frontend, tiny: str) -> None:
    whole = chat(up, tiny, "the house").json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == 256, "the engine rounds its context up"
    assert chat(up, tiny, "the house", max_tokens=3).json()["choices"][0]["finish_reason"] == "length"
    streamed = chat(up, tiny, "the house", stream=True).text
    assert streamed.count('"finish_reason":"length"') == 1


def test_an_ambiguous_grammar_is_refused_and_the_next_request_is_answered(up: Frontend, tiny: str) -> None:
    """Before the engine sees it, which would be held by it for minutes."""
    grammar = 'root ::= s\ns ::= [a-z ] s "a" | [a-y ] s "b"'

    answer = send(up, chat_body(tiny, grammar=grammar, max_tokens=200))

    assert_refused(answer)
    assert "the grammar is too ambiguous" in answer.json()["error"]["message"]
    assert answered(chat(up, tiny, "the house", max_tokens=4))
