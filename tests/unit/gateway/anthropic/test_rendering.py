"""What is written is what the official client reads."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from remuda.core.errors import Internal
from remuda.gateway.anthropic.rendering import ANTHROPIC, PING, MessageRenderer
from remuda.gateway.inference.text_answers import choice_of
from remuda.inference.answers import NOTHING, Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest
from tests.support.grpc_calls import HELLO, call_of

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def _renderer(call: InferenceCall | None = None, *, shows_thinking: bool = True) -> MessageRenderer:
    call = call or call_of(RequestKind.CHAT, {**HELLO, "max_tokens": 9})
    assert isinstance(call.request, ChatRequest)
    return MessageRenderer(call, call.request, shows_thinking=shows_thinking)


def _streamed(
    deltas: Sequence[Delta], reason: FinishReason, last: Delta, usage: Usage, **how: Any
) -> list[dict[str, Any]]:
    """The events, each with its name and its data in agreement."""
    renderer = _renderer(**how)
    data = b"".join(renderer.piece(0, delta) for delta in deltas)
    data += renderer.closing(0, reason, last) + renderer.ending(usage)
    events = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, text = block.split("\n")
        events.append(json.loads(text.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _read(events: Sequence[dict[str, Any]]) -> Message:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] != "ping":
            read: Any = event
            snapshot = accumulate_event(event=read, current_snapshot=snapshot, json_bufs=buffers)
    assert isinstance(snapshot, Message)
    return Message.model_validate(snapshot.to_dict())


def _whole(deltas: Sequence[Delta], reason: FinishReason, usage: Usage, **how: Any) -> Message:
    call = call_of(RequestKind.CHAT, {**HELLO, "max_tokens": 9})
    choice = choice_of(call, 0, deltas, reason)
    return Message.model_validate_json(_renderer(**how).whole([choice], usage))


def _said(message: Message) -> tuple[str, str, list[Any]]:
    """What it comes to, however it is divided into blocks."""
    texts = "".join(block.text for block in message.content if block.type == "text")
    thoughts = "".join(block.thinking for block in message.content if block.type == "thinking")
    calls = [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]
    return texts, thoughts, sorted(calls, key=str)


@st.composite
def _deltas(draw: st.DrawFn) -> list[Delta]:
    """Text, thoughts and parts of calls in any order; the parts of a call, joined, are an object."""
    words = st.text(max_size=5)
    parts: list[list[ToolCallDelta]] = []
    for number in range(draw(st.integers(0, 3))):
        arguments = json.dumps(draw(st.dictionaries(words, st.integers() | words, max_size=2)))
        cut = draw(st.integers(0, len(arguments)))
        first = ToolCallDelta(number, f"call-{number}", draw(words), arguments[:cut])
        parts.append([first, ToolCallDelta(number, arguments=arguments[cut:])])
    deltas = list[Delta]()
    for _ in range(draw(st.integers(0, 12))):
        waiting = [left for left in parts if left]
        calls: list[ToolCallDelta] = []
        goes_on = draw(st.booleans())
        if waiting and goes_on:
            calls.append(draw(st.sampled_from(waiting)).pop(0))
        deltas.append(Delta(draw(words), draw(words), calls))
    return deltas + [Delta(tool_calls=left) for left in parts if left]


@given(_deltas(), st.sampled_from(FinishReason), st.booleans())
def test_any_answer_reads_back_as_the_whole_one(
    deltas: list[Delta], reason: FinishReason, shows_thinking: bool
) -> None:
    usage = Usage(7, 5, cached_tokens=2)
    *before, last = deltas or [NOTHING]
    events = _streamed(before, reason, last, usage, shows_thinking=shows_thinking)
    streamed = _read(events)
    whole = _whole(deltas, reason, usage, shows_thinking=shows_thinking)

    assert _said(streamed) == _said(whole)
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    if not shows_thinking:
        assert all(block.type != "thinking" for block in streamed.content)


@given(_deltas())
def test_blocks_open_and_close_one_after_the_other(deltas: list[Delta]) -> None:
    events = _streamed(deltas, STOP, NOTHING, Usage())

    kinds = [event["type"] for event in events]
    assert (kinds[:2], kinds[-2:]) == (["message_start", "ping"], ["message_delta", "message_stop"])
    opened = [event["index"] for event in events if event["type"] == "content_block_start"]
    edges = [event for event in events if event["type"] in ("content_block_start", "content_block_stop")]
    assert opened == list(range(len(opened)))
    assert [(edge["type"][14:], edge["index"]) for edge in edges] == [
        (edge, index) for index in opened for edge in ("start", "stop")
    ]


def test_a_token_is_one_event() -> None:
    renderer = _renderer()
    renderer.piece(0, Delta("one"))

    piece = renderer.piece(0, Delta(' "two"\n'))

    assert piece == (
        b"event: content_block_delta\n"
        b'data: {"type":"content_block_delta","index":0,"delta":'
        b'{"type":"text_delta","text":" \\"two\\"\\n"}}\n\n'
    )


def test_a_message_begins_with_its_start_and_a_ping() -> None:
    first = _renderer().piece(0, Delta("one"))

    assert first.startswith(b"event: message_start\n")
    assert PING in first


def test_thoughts_that_are_not_shown_are_no_events() -> None:
    renderer = _renderer(shows_thinking=False)

    assert renderer.piece(0, Delta(reasoning="hm")).endswith(PING)
    assert renderer.piece(0, Delta(reasoning="hm")) == b""


@pytest.mark.parametrize("arguments", ["[1]", '"text"', '{"cut": ', "no", "[" * 5000])
def test_arguments_that_are_no_object_are_kept_as_they_are(arguments: str) -> None:
    called = Delta(tool_calls=[ToolCallDelta(0, "c", "f", arguments)])

    (block,) = _whole([called], LENGTH, Usage(1, 9)).content

    assert block.type == "tool_use"
    assert block.input == {"INVALID_JSON": arguments}


def test_a_call_without_arguments_or_id_gets_both() -> None:
    called = Delta(tool_calls=[ToolCallDelta(0, name="f")])

    for message in (_whole([called], STOP, Usage()), _read(_streamed([called], STOP, NOTHING, Usage()))):
        (block,) = message.content
        assert block.type == "tool_use"
        assert (block.id, block.input) == ("call_r1_0_0", {})
        assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("usage", "context", "reason"),
    [
        (Usage(3, 9), 0, "max_tokens"),
        (Usage(3, 9), 12, "max_tokens"),
        (Usage(3, 5), 0, "max_tokens"),
        (Usage(3, 5), 8, "model_context_window_exceeded"),
        (Usage(3, 5), 9, "model_context_window_exceeded"),
        (Usage(3, 5), 10, "max_tokens"),
    ],
)
def test_a_full_context_is_told_from_a_limit_that_was_asked_for(
    usage: Usage, context: int, reason: str
) -> None:
    call = replace(call_of(RequestKind.CHAT, {**HELLO, "max_tokens": 9}), context=context)

    assert _read(_streamed([Delta("a")], LENGTH, NOTHING, usage, call=call)).stop_reason == reason


@pytest.mark.parametrize(
    ("met", "told"),
    [("END", ("stop_sequence", "END")), ("<|im_end|>", ("end_turn", None)), ("", ("end_turn", None))],
)
def test_a_stop_sequence_is_told_if_the_client_asked_for_it(met: str, told: tuple[str, str | None]) -> None:
    call = call_of(RequestKind.CHAT, {**HELLO, "stop": ["END"]})
    call.tally.stop_sequence = met

    message = _read(_streamed([Delta("a")], STOP, NOTHING, Usage(), call=call))

    assert (message.stop_reason, message.stop_sequence) == told


def test_what_no_backend_told_of_usage_is_null() -> None:
    usage = _whole([], STOP, Usage(4, 2)).usage

    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (4, 2, None)
    assert usage.output_tokens_details is None


@pytest.mark.parametrize(
    ("written", "before"), [(b"", b""), (b"data: {}\n\n", b""), (b'data: {"half', b"\n\n")]
)
def test_an_error_is_an_event_of_its_own(written: bytes, before: bytes) -> None:
    body = ANTHROPIC.error(Internal("oh")).body

    assert ANTHROPIC.last_event(body, written) == before + b"event: error\ndata: " + body + b"\n\n"
