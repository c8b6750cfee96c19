"""Bodies that cannot be used are refused with the field's name; whatever else is sent, nothing breaks."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request
from remuda.inference.requests import NULL, ChatRequest, CompletionRequest, EmbeddingRequest


def parser(path: str) -> Callable[[bytes], Request | MediaRequest]:
    endpoint = ENDPOINTS[path]
    return lambda body: endpoint.parse(body).request


CHAT = parser("/v1/chat/completions")
COMPLETION = parser("/v1/completions")
EMBEDDING = parser("/v1/embeddings")
RERANK = parser("/v1/rerank")
JSON_PATHS = [path for path, endpoint in ENDPOINTS.items() if endpoint.form is None]
HI = [{"role": "user", "content": "hi"}]
DEEP = 100_000


def refused(parse: Callable[[bytes], Request | MediaRequest], body: bytes) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        parse(body)
    return caught.value


def chat(**changes: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI} | changes).encode()


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0].type"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1 << 31}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 99}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"seed": 10**30}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"mirostat": 7}, "mirostat"),
        ({"mirostat": -1}, "mirostat"),
        ({"mirostat_tau": -1}, "mirostat_tau"),
        ({"mirostat_eta": -0.1}, "mirostat_eta"),
        ({"typical_p": -1}, "typical_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"tfs_z": -1}, "tfs_z"),
        ({"tfz": -1}, "tfz"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"repeat_last_n": -7}, "repeat_last_n"),
        ({"n_keep": -2}, "n_keep"),
        ({"n_keep": 1.5}, "n_keep"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"seed": "lucky"}, "seed"),
        ({"logit_bias": {"50256": 101}}, "logit_bias"),
        ({"logit_bias": {"50256": -1000}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
        ({"logit_bias": [[1, 2]]}, "logit_bias"),
        ({"stop": [""] * 50}, "stop[0]"),
        ({"stop": ["end", ""]}, "stop[1]"),
        ({"stop": ["end"] * 65}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []}, "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], param: str) -> None:
    error = refused(CHAT, chat(**changes))
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": -1, "min_p": 0, "typical_p": 1, "tfs_z": 1, "tfz": 1, "repeat_penalty": 1},
        {"top_k": 0, "typical_p": 0, "repeat_penalty": 0, "repeat_last_n": 0, "n_keep": 0, "mirostat": 0},
        {"repeat_last_n": -1, "n_keep": -1, "seed": -1, "mirostat_tau": 0, "mirostat_eta": 0},
        {"stop": "", "logit_bias": {}, "presence_penalty": 0},
        {"tool_choice": "none", "tools": []},
        {"tool_choice": "auto"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}]},
        {"stop": [], "logit_bias": {"0": -100, "Hello": 100}},
    ],
)
def test_values_that_switch_a_field_off_are_taken(changes: dict[str, Any]) -> None:
    assert CHAT(chat(**changes)).model == "m"


@pytest.mark.parametrize("body", [b'{"messages": [{"role": "user"}]}', b"{}"])
def test_a_missing_field_is_named(body: bytes) -> None:
    error = refused(CHAT, body)
    assert (error.param, error.message) == (error.param, f"{error.param} is missing")


@pytest.mark.parametrize("body", [b"", b"{", b"hello", b'{"model": "m",}', b"\xef\xbb\xbf{}"])
def test_what_is_not_json_is_told_so(body: bytes) -> None:
    assert "JSON" in refused(CHAT, body).message


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1e400", b"true"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    assert refused(CHAT, body).param == ""


@pytest.mark.parametrize("field", ["user", "unheard_of", "messages"])
def test_bytes_that_are_no_utf8_are_refused_wherever_they_stand(field: str) -> None:
    body = chat(**{field: "MARK"}).replace(b"MARK", b"\xff\xfe")
    assert "UTF-8" in refused(CHAT, body).message


@pytest.mark.parametrize("field", ["unheard_of", "messages", "tools", "logit_bias"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_refused(field: str, opening: bytes, closing: bytes) -> None:
    body = chat(**{field: "DEEP"}).replace(b'"DEEP"', opening * DEEP + b"1" + closing * DEEP)
    assert refused(CHAT, body).message


@pytest.mark.parametrize("field", ["parameters", "unheard_of"])
def test_a_schema_nested_deeply_is_refused(field: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", field: "DEEP"}}]
    body = chat(tools=tools).replace(b'"DEEP"', b"[" * DEEP + b"]" * DEEP)
    assert "deeply" in refused(CHAT, body).message


def test_a_long_wrong_value_is_not_quoted_in_full() -> None:
    assert len(refused(CHAT, chat(tool_choice="x" * 10_000)).message) < 500


def test_a_value_that_looks_like_a_place_does_not_hide_the_place() -> None:
    assert refused(CHAT, chat(tool_choice="a - at `$.b`")).param == "tool_choice"


def test_json_that_is_passed_on_is_left_as_it_was_written() -> None:
    schema = b'{"type": "object",  "a": [1e2]}'
    tools = [{"type": "function", "function": {"name": "f", "parameters": "SCHEMA"}}]
    request = CHAT(chat(tools=tools).replace(b'"SCHEMA"', schema))
    assert isinstance(request, ChatRequest)
    assert request.tools is not None
    assert bytes(request.tools[0].function.parameters) == schema


def test_json_that_is_not_there_is_null() -> None:
    request = CHAT(chat(tools=[{"type": "function", "function": {"name": "f"}}]))
    assert isinstance(request, ChatRequest)
    assert request.tools is not None
    assert request.tools[0].function.parameters == NULL


@pytest.mark.parametrize("given", ["one", ["one", "two"], [1, 2], [[1], [2, 3]]])
def test_texts_come_in_four_forms(given: object) -> None:
    prompt = COMPLETION(json.dumps({"model": "m", "prompt": given}).encode())
    text = EMBEDDING(json.dumps({"model": "m", "input": given}).encode())
    assert isinstance(prompt, CompletionRequest)
    assert isinstance(text, EmbeddingRequest)
    assert prompt.prompt == text.input == given


@pytest.mark.parametrize("given", [[], ["one", 2], [[1], "two"], [-1], [1.5], {}, 3, [["one"]]])
def test_other_forms_of_text_are_refused(given: object) -> None:
    assert refused(EMBEDDING, json.dumps({"model": "m", "input": given}).encode()).param.startswith("input")
    assert refused(COMPLETION, json.dumps({"model": "m", "prompt": given}).encode()).param.startswith(
        "prompt"
    )


def test_a_rerank_without_documents_is_refused() -> None:
    assert refused(RERANK, b'{"model": "m", "query": "q", "documents": []}').param == "documents"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*ChatRequest.__struct_fields__, "prompt", "input", "documents", "query", "other"])
BODIES = st.dictionaries(FIELDS, JSON, max_size=8).map(lambda body: json.dumps(body).encode())


@given(body=BODIES | JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_whatever_is_sent_is_a_request_or_refused(body: bytes) -> None:
    assert all(understood(parse, body) or refused(parse, body).message for parse in map(parser, JSON_PATHS))


def understood(parse: Callable[[bytes], Request | MediaRequest], body: bytes) -> bool:
    with suppress(InvalidField):
        return bool(parse(body).model)
    return False


@pytest.mark.parametrize(
    "body",
    [{"input": "a"}, {"query": "a", "documents": ["b"]}, {"prompt": "a"}, {"messages": HI}],
    ids=["input", "rerank", "prompt", "chat"],
)
def test_null_for_an_optional_field_means_that_it_is_absent(body: dict[str, object]) -> None:
    paths = [path for path in JSON_PATHS if not path.startswith("/v1/tokenize")]
    optional = ("encoding_format", "dimensions", "response_format", "voice", "n", "user", "stream", "top_n")
    for path in paths:
        with suppress(InvalidField):
            plain = ENDPOINTS[path].parse(json.dumps({"model": "m", **body}).encode()).request
            nulls = json.dumps({"model": "m", **body, **dict.fromkeys(optional)}).encode()
            try:
                assert repr(ENDPOINTS[path].parse(nulls).request) == repr(plain), path
            except InvalidField as error:
                raise AssertionError(f"{path}: {error.message}") from error
