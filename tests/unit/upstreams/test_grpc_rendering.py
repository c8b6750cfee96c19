import json
from typing import Any

import pytest

from remuda.inference.model import Kind
from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.hearing import Said, Usage
from remuda.upstreams.grpc.rendering import DONE, ChatPen, CompletionPen, choice_of
from tests.support.grpc_calls import HELLO, call_of

PROBABILITIES = b'{"content":[{"token":"hi","logprob":-0.5,"top_logprobs":[{"token":"ho","logprob":-1}]}]}'


def _chat_pen(**body: object) -> ChatPen:
    call = call_of(Kind.CHAT, {**HELLO, **body})
    assert isinstance(call.request, ChatRequest)
    pen = ChatPen(call, call.request)
    pen.opening(0)
    return pen


def _completion_pen(*echoed: str, **body: object) -> CompletionPen:
    call = call_of(Kind.COMPLETION, {"prompt": "p", **body})
    assert isinstance(call.request, CompletionRequest)
    pen = CompletionPen(call, call.request, echoed)
    pen.opening(0)
    return pen


def _event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"}\n\n")
    return json.loads(data.removeprefix(b"data: "))


def test_a_piece_of_a_chat_is_openais() -> None:
    assert _event(_chat_pen().piece(0, Said("hi"))) == {
        "id": "chatcmpl-r1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}],
    }


@pytest.mark.parametrize("text", ['"quoted"\\', "line\nline\r\n\n", "\x00\x1f", "é🐎\u2028", "</script>"])
def test_any_text_is_one_line_of_json(text: str) -> None:
    data = _chat_pen().piece(0, Said(text))

    assert _event(data)["choices"][0]["delta"]["content"] == text
    assert data.count(b"\n") == 2


def test_a_piece_may_have_everything_at_once() -> None:
    calls = [pb.ToolCallDelta(index=0, id="c", name="f", arguments="{")]

    (choice,) = _event(_chat_pen().piece(0, Said("hi", "hm", calls, PROBABILITIES)))["choices"]

    called = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    thought = {"reasoning_content": "hm", "reasoning": "hm"}
    assert choice["delta"] == {**thought, "content": "hi", "tool_calls": [called]}
    assert choice["logprobs"] == json.loads(PROBABILITIES)


def test_usage_is_told_at_the_end_when_asked_for() -> None:
    pen = _chat_pen(stream_options={"include_usage": True})

    event, done, rest = pen.ending(Usage(3, 4)).split(b"\n\n")

    assert _event(pen.piece(0, Said("hi")))["usage"] is None
    told = json.loads(event.removeprefix(b"data: "))
    assert told["choices"] == []
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (done, rest) == (b"data: [DONE]", b"")


def test_usage_is_not_told_unasked() -> None:
    pen = _chat_pen()

    assert pen.ending(Usage(3, 4)) == DONE
    assert "usage" not in _event(pen.closing(0, "stop"))


def test_a_completion_tells_the_prompt_first_when_asked_to() -> None:
    pen = _completion_pen("once ")

    assert _event(pen.opening(0))["choices"][0]["text"] == "once "
    assert _completion_pen("").opening(0) == b""


def test_probabilities_of_a_completion_stand_in_columns() -> None:
    pen = _completion_pen("")
    pen.piece(0, Said("four"))

    (choice,) = _event(pen.piece(0, Said("hi", logprobs=PROBABILITIES)))["choices"]

    assert choice["logprobs"] == {
        "tokens": ["hi"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"ho": -1}],
        "text_offset": [4],
    }


def test_a_whole_answer_gathers_calls_by_number() -> None:
    call = call_of(Kind.CHAT, HELLO)
    pieces = [
        Said("a", "x", [pb.ToolCallDelta(index=1, name="g", arguments="{}")]),
        Said("b", "y", [pb.ToolCallDelta(index=0, id="c", name="f", arguments="{")]),
        Said(calls=[pb.ToolCallDelta(index=0, arguments="}")]),
    ]

    choice = choice_of(call, 2, pieces, "tool_calls")

    assert (choice.content, choice.reasoning) == ("ab", "xy")
    assert [(one.id, one.name, one.arguments) for one in choice.calls] == [
        ("c", "f", "{}"),
        ("call_r1_2_1", "g", "{}"),
    ]
