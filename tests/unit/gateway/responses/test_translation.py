"""From items to chats: what a model is told, and what is refused."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.responses.bodies import ITEMS, Item
from remuda.gateway.responses.endpoints import parse
from remuda.gateway.responses.translation import continued
from remuda.inference.requests import ChatRequest, NamedTool, RequestMessage

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "blue"}
PNG = "data:image/png;base64,AAAA"


def chat(**members: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "input": "hi", **members}).encode()).request


def told(messages: list[RequestMessage]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = [
        {key: value for key, value in message.items() if value is not None}
        for message in msgspec.to_builtins([_plain(message) for message in messages])
    ]
    return shown


def _plain(message: RequestMessage) -> dict[str, Any]:
    calls = [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls or ()]
    content = message.content
    if isinstance(content, list):
        content = [[part.type, part.text] for part in content]  # type: ignore[misc]
    found = {"role": message.role, "content": content, "thought": message.reasoning_content}
    return {**found, "calls": calls or None, "of": message.tool_call_id}


def test_a_text_is_what_the_user_says() -> None:
    assert told(chat(instructions="Be brief.").messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_what_the_assistant_thinks_says_and_calls_is_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    more = {**CALL, "call_id": "c2"}
    items = [{"role": "user", "content": "hi"}, thought, said, CALL, more, RESULT]
    items.append({**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "red"}]})
    assert told(chat(input=items).messages) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look",
            "thought": "Hm",
            "calls": [["c1", "look", "{}"], ["c2", "look", "{}"]],
        },
        {"role": "tool", "content": "blue", "of": "c1"},
        {"role": "tool", "content": "red", "of": "c2"},
    ]


def test_pictures_are_shown_and_those_in_results_after_them() -> None:
    picture = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "what is this"}, picture]},
        CALL,
        {**RESULT, "output": [picture]},
    ]
    messages = chat(input=items).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    for shown in (messages[0], messages[3]):
        assert isinstance(shown.content, list)
        assert json.loads(bytes(shown.content[-1].image_url)) == {"url": PNG}
    assert messages[2].content == "(An image: it follows after the results.)"


def test_a_conversation_goes_on_where_it_was() -> None:
    body = {"model": "m", "input": [RESULT], "previous_response_id": "resp_1", "instructions": "New."}
    known = parse(json.dumps(body).encode())
    history: list[Item] = []
    earlier = ITEMS.decode(json.dumps([{"role": "user", "content": "hi"}, CALL]))
    assert isinstance(earlier, list)
    history += earlier
    messages = continued(known.request, known.body, history).messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
    with pytest.raises(InvalidField, match="call_id 'c1'"):
        continued(known.request, known.body, history[:1])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "king", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"type": "message", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": "film"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
        ({"input": [RESULT]}, "input"),
        ({"input": [CALL, {**RESULT, "output": 3}]}, "input[1].output"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**LOOK, "parameters": "x"}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"background": True, "store": False}, "store"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ],
)
def test_what_no_model_here_can_be_told_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        chat(**members)
    assert caught.value.param == param


def test_tools_and_the_choice_among_them() -> None:
    other = {**LOOK, "name": "other"}
    named = chat(tools=[LOOK, other], tool_choice={"type": "function", "name": "look"})
    assert isinstance(named.tool_choice, NamedTool)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    some = chat(tools=[LOOK, other], tool_choice=allowed)
    assert some.tool_choice == "required"
    assert [tool.function.name for tool in some.tools or ()] == ["other"]
    assert chat(tool_choice="auto").tool_choice is None


@pytest.mark.parametrize(
    ("effort", "told_effort", "metadata"),
    [("low", "low", None), ("minimal", "low", None), ("max", "high", None), ("none", None, "false")],
)
def test_how_much_is_thought(effort: str, told_effort: str | None, metadata: str | None) -> None:
    known = chat(reasoning={"effort": effort})
    assert known.reasoning_effort == told_effort
    assert (known.metadata or {}).get("enable_thinking") == metadata


def test_how_much_is_thought_has_its_words() -> None:
    with pytest.raises(InvalidField, match=r"reasoning\.effort must be one of none, minimal, low"):
        chat(reasoning={"effort": "huge"})


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {}}
    known = chat(text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}})
    assert known.response_format is not None
    assert known.response_format.json_schema is not None
    assert json.loads(bytes(known.response_format.json_schema.schema)) == schema
    assert chat(text={"format": {"type": "text"}}).response_format is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("type", "role", "content", "call_id", "output", "arguments", "name", "summary", "id")
KINDS = st.sampled_from(
    ["message", "function_call", "function_call_output", "reasoning", "user", "input_text"]
)
ITEM = st.dictionaries(st.sampled_from(NAMES), KINDS | JSON, max_size=6)


@given(
    items=st.lists(ITEM, max_size=4) | JSON, rest=st.dictionaries(st.sampled_from(["tools", "text"]), JSON)
)
def test_whatever_is_sent_is_a_request_or_refused(items: Any, rest: dict[str, Any]) -> None:
    with suppress(InvalidField):
        assert chat(input=items, **rest).messages
