"""Chats as conversations of Anthropic's API, and its answers."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.anthropic.messages import MessagesBody
from remuda.gateway.anthropic.translation import chat_of
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta
from remuda.inference.failures import InputUnsupported, RequestUnsupported, UpstreamFailed
from remuda.inference.requests import ChatRequest, openai_json
from remuda.upstreams.anthropic.conversation import TOKENS_USUAL, conversation_of
from remuda.upstreams.anthropic.message_decoder import MessageDecoder

PNG = "data:image/png;base64,AAAA"


def chat(*messages: dict[str, object], **members: object) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": messages, **members}, ChatRequest)


def conversation(*messages: dict[str, object], **members: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(conversation_of(decoded(*messages, **members), "claude"))
    return made


def decoded(*messages: dict[str, object], **members: object) -> ChatRequest:
    """As it comes from a client: what is passed on unread stays text."""
    body = msgspec.json.encode({"model": "m", "messages": messages, **members})
    return msgspec.json.decode(body, type=ChatRequest)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_a_conversation_has_one_system_text_turns_and_a_limit() -> None:
    made = conversation(
        {"role": "system", "content": "Be brief."},
        user("a"),
        user([{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": PNG}}]),
        {"role": "assistant", "content": "c"},
        user("d"),
        temperature=1.7,
        stop="END",
        user="me",
    )
    assert (made["model"], made["max_tokens"], made["system"]) == ("claude", TOKENS_USUAL, "Be brief.")
    assert [turn["role"] for turn in made["messages"]] == ["user", "assistant", "user"]
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert made["messages"][0]["content"][2] == {"type": "image", "source": source}
    assert (made["temperature"], made["stop_sequences"]) == (1.0, ["END"])
    assert made["metadata"] == {"user_id": "me"}


def test_calls_of_tools_and_their_results_keep_their_ids() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    made = conversation(
        user("What time is it?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    use, result = made["messages"][1]["content"][0], made["messages"][2]["content"][0]
    assert use == {"type": "tool_use", "id": "c1", "name": "clock", "input": {"zone": "UTC"}}
    assert (result["tool_use_id"], result["content"]) == ("c1", [{"type": "text", "text": "12:00"}])
    assert made["tools"] == [{"name": "clock", "input_schema": {"type": "object"}}]
    assert made["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    "members", [{"n": 2}, {"logprobs": True}, {"response_format": {"type": "json_object"}}, {"grammar": "x"}]
)
def test_what_it_has_no_place_for_is_refused(members: dict[str, object]) -> None:
    with pytest.raises(RequestUnsupported):
        conversation(user("a"), **members)


def test_sounds_are_refused() -> None:
    with pytest.raises(InputUnsupported, match="input_audio"):
        conversation(user([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]))


texts = st.text(min_size=1, max_size=20).filter(str.strip)
turns = st.lists(st.tuples(texts, texts), min_size=1, max_size=4)


@given(turns, texts, st.integers(1, 1000))
def test_a_chat_survives_the_way_there_and_back(said: list[tuple[str, str]], system: str, limit: int) -> None:
    messages: list[dict[str, object]] = [{"role": "system", "content": system}]
    for asked, answered in said:
        messages += [user(asked), {"role": "assistant", "content": answered}]
    before = chat(*messages, user("and?"), max_tokens=limit)
    body = msgspec.json.decode(conversation_of(before, "m"), type=MessagesBody)
    after = chat_of(body)
    told = [(one.role, one.content) for one in after.messages]
    assert told == [(one.role, one.content) for one in before.messages]
    assert after.max_tokens == limit


def event(**members: object) -> bytes:
    return f"event: x\ndata: {json.dumps(members)}\n\n".encode()


STREAM = b"".join(
    (
        event(type="message_start", message={"usage": {"input_tokens": 7, "cache_read_input_tokens": 3}}),
        event(type="ping"),
        event(type="content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        event(type="content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        event(type="content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
        event(type="content_block_start", index=1, content_block={"type": "text", "text": ""}),
        event(type="content_block_delta", index=1, delta={"type": "text_delta", "text": "Hi"}),
        event(
            type="content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "f"}
        ),
        event(type="content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": "{}"}),
        event(type="message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}),
        event(type="message_stop"),
    )
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=5).map(sorted))
def test_a_stream_is_understood_however_it_is_cut(cuts: list[int]) -> None:
    decoder, deltas = MessageDecoder(), list[Delta]()
    for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        deltas += decoder.feed(STREAM[start:end])
    assert deltas == [
        Delta(reasoning="hm"),
        Delta("Hi"),
        Delta(tool_calls=(ToolCallDelta(0, "t", "f"),)),
        Delta(tool_calls=(ToolCallDelta(0, arguments="{}"),)),
    ]
    assert (decoder.ended, decoder.finished) == (True, FinishReason.TOOL_CALLS)
    assert (decoder.usage.prompt_tokens, decoder.usage.completion_tokens) == (10, 9)


@given(st.binary(max_size=300))
def test_any_bytes_are_understood_or_a_failure_of_the_server(data: bytes) -> None:
    for feed in (MessageDecoder().feed, MessageDecoder().whole):
        try:
            deltas = feed(data)
        except UpstreamFailed:
            deltas = []
        assert all(isinstance(delta, Delta) for delta in deltas)


def test_an_error_in_the_stream_is_one() -> None:
    told = event(type="error", error={"type": "overloaded_error", "message": "Overloaded"})
    with pytest.raises(UpstreamFailed, match="Overloaded"):
        MessageDecoder().feed(told)


MARK = {"type": "ephemeral", "ttl": "1h"}
MARKED_TOOL = {"name": "look", "input_schema": {"type": "object"}, "cache_control": MARK}


def marks(block: dict[str, Any]) -> object:
    return block.get("cache_control")


def test_what_anthropics_clients_want_kept_is_kept_by_its_servers() -> None:
    """At the end of the message in which they say so, for its blocks are one text here."""
    text = {"type": "text", "text": "a"}
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": [text, {**text, "cache_control": MARK}],
        "tools": [MARKED_TOOL, {**MARKED_TOOL, "name": "ask", "cache_control": None}],
        "messages": [
            {"role": "user", "content": [{**text, "cache_control": MARK}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    }
    chat = chat_of(msgspec.json.decode(msgspec.json.encode(body), type=MessagesBody))
    made = json.loads(conversation_of(chat, "claude"))
    assert made["system"] == [{"type": "text", "text": "a\n\na", "cache_control": MARK}]
    assert [marks(tool) for tool in made["tools"]] == [MARK, None]
    assert [[marks(block) for block in turn["content"]] for turn in made["messages"]] == [
        [MARK],
        [None],
        [None],
    ]
    assert b"cache_control" not in openai_json(chat), "OpenAI's API has no such thing"


def test_what_openais_clients_mark_as_litellm_does_is_kept_too() -> None:
    part = {"type": "text", "text": "a"}
    made = conversation(
        {"role": "system", "content": "s", "cache_control": MARK},
        user([{**part, "cache_control": MARK}, part]),
    )
    assert made["system"] == [{"type": "text", "text": "s", "cache_control": MARK}]
    assert [marks(block) for block in made["messages"][0]["content"]] == [MARK, None]


@pytest.mark.parametrize("mark", [None, "ephemeral", 3, []])
def test_what_is_no_mark_is_left_out(mark: object) -> None:
    made = conversation({"role": "system", "content": "s", "cache_control": mark}, user("a"))
    assert made["system"] == "s"
