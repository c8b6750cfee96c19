"""Bodies that cannot be used are refused with the field's name; whatever else is sent, nothing breaks."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.ollama.api import ENDPOINTS
from remuda.gateway.ollama.names import other_names, shown_name
from remuda.gateway.ollama.options import keep_alive
from remuda.gateway.ollama.requests import OllamaRequest, chat, embed, embeddings, generate
from remuda.inference.requests import ChatRequest
from remuda.models.keep_alive import FOR_EVER

HI = [{"role": "user", "content": "hi"}]
Parse = Callable[[bytes], OllamaRequest]


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m"} | members).encode()


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


BAD: list[tuple[Parse, dict[str, Any], str]] = [
    (chat, {"model": ""}, "model"),
    (chat, {"model": 7}, "model"),
    (chat, {"messages": "hi"}, "messages"),
    (chat, {"messages": [{}]}, "messages[0].role"),
    (chat, {"messages": [{"role": "king"}]}, "messages[0].role"),
    (chat, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    (chat, {"messages": [{"role": "user", "images": "abc"}]}, "messages[0].images"),
    (chat, {"messages": [{"role": "user", "images": [7]}]}, "messages[0].images[0]"),
    (chat, {"messages": [call("{}")]}, "messages[0].tool_calls[0].function.arguments"),
    (chat, {"messages": [call([])]}, "messages[0].tool_calls[0].function.arguments"),
    (chat, {"messages": HI, "tools": {}}, "tools"),
    (chat, {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
    (chat, {"messages": HI, "tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
    (chat, {"messages": HI, "tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
    (
        chat,
        {"messages": HI, "tools": [{"function": {"name": "f", "parameters": [1]}}]},
        "tools[0].function.parameters",
    ),
    (chat, {"stream": "yes"}, "stream"),
    (chat, {"format": "xml"}, "format"),
    (chat, {"format": 3}, "format"),
    (chat, {"think": "deeply"}, "think"),
    (chat, {"think": 1}, "think"),
    (chat, {"keep_alive": "soon"}, "keep_alive"),
    (chat, {"keep_alive": ""}, "keep_alive"),
    (chat, {"keep_alive": [5]}, "keep_alive"),
    (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (chat, {"top_logprobs": 2}, "top_logprobs"),
    (chat, {"options": []}, "options"),
    (chat, {"options": {"temperature": "warm"}}, "options.temperature"),
    (chat, {"options": {"temperature": 3}}, "options.temperature"),
    (chat, {"options": {"top_k": 1.5}}, "options.top_k"),
    (chat, {"options": {"top_k": -2}}, "options.top_k"),
    (chat, {"options": {"seed": 10**30}}, "options.seed"),
    (chat, {"options": {"mirostat": 7}}, "options.mirostat"),
    (chat, {"options": {"num_predict": 1 << 40}}, "options.num_predict"),
    (chat, {"options": {"stop": ["a", ""]}}, "options.stop[1]"),
    (chat, {"options": {"stop": ["a"] * 65}}, "options.stop"),
    (chat, {"options": {"stop": [1]}}, "options.stop[0]"),
    (generate, {"prompt": 3}, "prompt"),
    (generate, {"prompt": "hi", "template": "{{ .Prompt }}"}, "template"),
    (generate, {"prompt": "hi", "context": [1, 2]}, "context"),
    (generate, {"prompt": "hi", "images": [1]}, "images[0]"),
    (generate, {"prompt": "hi", "raw": True, "system": "s"}, "system"),
    (generate, {"prompt": "hi", "raw": True, "images": ["aa"]}, "images"),
    (generate, {"prompt": "hi", "suffix": "s", "format": "json"}, "format"),
    (embed, {}, "input"),
    (embed, {"input": 3}, "input"),
    (embed, {"input": [1, 2]}, "input[0]"),
    (embed, {"input": "a", "dimensions": 0}, "dimensions"),
    (embeddings, {"prompt": ["a"]}, "prompt"),
]


@pytest.mark.parametrize(("parse", "changes", "param"), BAD)
def test_the_field_that_is_wrong_is_named(parse: Parse, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as refused:
        parse(body(**changes))
    assert refused.value.param == param


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b"null", b'"hi"', b'{"model": "\xff"}', b"[" * 100_000])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_is_no_request_is_refused(path: str, sent: bytes) -> None:
    with pytest.raises(InvalidField):
        ENDPOINTS[path].parse(sent)


@pytest.mark.parametrize(
    "ignored",
    [{"context": []}, {"template": ""}, {"suffix": ""}, {"images": []}, {"width": 5}, {"format": ""}],
)
def test_what_says_nothing_is_nothing(ignored: dict[str, Any]) -> None:
    known = generate(body(prompt="hi", **ignored))
    assert known == generate(body(prompt="hi"))
    assert isinstance(known.request, ChatRequest)


@pytest.mark.parametrize("limit", [-2, -1, 0])
def test_no_limit_of_tokens_is_none(limit: int) -> None:
    request = chat(body(messages=HI, options={"num_predict": limit})).request
    assert isinstance(request, ChatRequest)
    assert request.max_tokens is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        (0, timedelta()),
        ("0", timedelta()),
        ("0s", timedelta()),
        (300, timedelta(minutes=5)),
        (0.5, timedelta(seconds=0.5)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("90", timedelta(seconds=90)),
        (-1, FOR_EVER),
        ("-1", FOR_EVER),
        ("-1s", FOR_EVER),
        ("-5m", FOR_EVER),
        (1e300, FOR_EVER),
    ],
)
def test_how_long_a_model_is_to_stay(said: Any, meant: timedelta | None) -> None:
    assert keep_alive(said) == meant


@pytest.mark.parametrize("said", ["nan", "-soon", "5 minutes", "m", "-", "--1s"])
def test_what_is_no_duration_is_refused(said: str) -> None:
    with pytest.raises(InvalidField):
        keep_alive(said)


def test_results_belong_to_the_calls_of_their_tools_in_turn() -> None:
    def called(name: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}}

    calls = {"role": "assistant", "tool_calls": [called("a"), called("b"), called("a")]}
    results = [{"role": "tool", "tool_name": name, "content": ""} for name in ("b", "a", "a", "a")]
    request = chat(body(messages=[calls, *results])).request
    assert isinstance(request, ChatRequest)
    ids = [message.tool_call_id for message in request.messages[1:]]
    made = [call.id for call in request.messages[0].tool_calls or ()]
    assert ids == [made[1], made[0], made[2], None]


NAMES = st.text(st.characters(codec="ascii", exclude_characters=":/"), min_size=1)
WITH_OWNER = st.builds("{}/{}".format, NAMES, NAMES) | NAMES
TAGGED = st.builds("{}:{}".format, WITH_OWNER, NAMES)


@given(WITH_OWNER | TAGGED, st.sets(WITH_OWNER | TAGGED))
def test_what_is_shown_is_what_can_be_asked_for(name: str, others: set[str]) -> None:
    names = others | {name}
    shown = shown_name(name, names)
    found = next((one for one in (shown, *other_names(shown)) if one in names), None)
    assert found == name


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.sampled_from(
    [
        *("prompt", "messages", "input", "stream", "format", "options", "keep_alive", "think", "images"),
        *("suffix", "system", "raw", "context", "tools", "logprobs", "top_logprobs", "dimensions"),
    ]
)


@given(path=st.sampled_from(sorted(ENDPOINTS)), members=st.dictionaries(MEMBERS, JSON, max_size=5))
def test_whatever_is_sent_is_understood_or_refused(path: str, members: dict[str, Any]) -> None:
    sent = body(**members)
    with suppress(InvalidField):
        known = ENDPOINTS[path].parse(sent)
        written = json.loads(known.openai_body(sent))
        assert written["model"] == "m"
        assert None not in written.values()
