"""What callers get to see of the engine's events."""

import json
from typing import Any

import grpc
import pytest

from remuda.backends.calls import Refused
from remuda.backends.llama_cpp.replies import chat_reply, completion_reply, stopping_word, whole
from remuda.rpc import backend_pb2 as pb

TIMINGS = {"prompt_n": 3, "cache_n": 2, "prompt_ms": 1.5, "predicted_n": 2, "predicted_ms": 2.5}


def encoded(*events: Any) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def token(text: str, count: int, **more: Any) -> Any:
    return {"content": text, "tokens_predicted": count, "tokens_evaluated": 5, **more}


def chat(delta: Any, **more: Any) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


def tool(index: int, arguments: str, name: str = "", id: str = "") -> Any:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def test_events_that_came_together_become_one_reply() -> None:
    reply = completion_reply(encoded(token("gr", 1), token("üß", 2)))
    assert reply == pb.Reply(message="grüß".encode(), tokens=2, prompt_tokens=5)


def test_signs_of_life_are_not_passed_on() -> None:
    progress = token("", 0, prompt_progress={"total": 9, "processed": 3})
    assert completion_reply(encoded(progress)) is None
    assert chat_reply(encoded(chat({"role": "assistant", "content": None}))) is None


def test_the_last_event_brings_the_timings() -> None:
    reply = completion_reply(encoded(token("", 2, stop=True, timings=TIMINGS)))
    assert reply is not None
    assert (reply.timing_prompt_processing, reply.timing_token_generation) == (1.5, 2.5)


def test_a_chat_s_text_reasoning_and_tool_calls_come_apart() -> None:
    reply = chat_reply(
        encoded(
            chat({"reasoning_content": "hm"}),
            chat({"content": "Hello"}),
            chat({"tool_calls": [tool(0, '{"a"', "weather", "id-1")]}, timings=TIMINGS),
        )
    )
    assert reply is not None
    assert (reply.message, reply.tokens, reply.prompt_tokens) == (b"Hello", 2, 5)
    assert [(d.reasoning_content, d.content) for d in reply.chat_deltas] == [
        ("hm", ""),
        ("", "Hello"),
        ("", ""),
    ]
    (call,) = reply.chat_deltas[2].tool_calls
    assert (call.index, call.id, call.name, call.arguments) == (0, "id-1", "weather", '{"a"')


def test_a_whole_answer_joins_what_its_parts_said() -> None:
    parts = [
        chat_reply(encoded(event))
        for event in (
            chat({"reasoning_content": "h"}),
            chat({"reasoning_content": "m"}),
            chat({"content": "Hel"}),
            chat({"content": "lo"}),
            chat({"tool_calls": [tool(0, '{"a"', "weather", "id-1")]}),
            chat({"tool_calls": [tool(1, "{}", "time", "id-2")]}),
            chat({"tool_calls": [tool(0, ": 1}")]}),
            chat({}, timings=TIMINGS),
        )
    ]
    reply = whole(part for part in parts if part)
    assert (reply.message, reply.tokens, reply.timing_token_generation) == (b"Hello", 2, 2.5)
    (delta,) = reply.chat_deltas
    assert (delta.content, delta.reasoning_content) == ("Hello", "hm")
    assert [(c.index, c.id, c.name, c.arguments) for c in delta.tool_calls] == [
        (0, "id-1", "weather", '{"a": 1}'),
        (1, "id-2", "time", "{}"),
    ]


def test_chances_are_told_in_one_shape_and_joined() -> None:
    first, second = {"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}
    plain = completion_reply(encoded(token("a", 1, completion_probabilities=[first])))
    other = completion_reply(encoded(token("b", 2, completion_probabilities=[second])))
    chatted = chat_reply(
        encoded({"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [first]}}]})
    )
    assert plain is not None
    assert other is not None
    assert chatted is not None
    assert json.loads(plain.logprobs) == json.loads(chatted.logprobs) == {"content": [first]}
    assert json.loads(whole([plain, other]).logprobs) == {"content": [first, second]}


@pytest.mark.parametrize("reply_of", [completion_reply, chat_reply])
def test_an_error_in_the_middle_of_a_stream_ends_the_call(reply_of: Any) -> None:
    with pytest.raises(Refused) as refused:
        reply_of(encoded({"error": {"code": 500, "message": "Context size has been exceeded."}}))
    assert refused.value.code is grpc.StatusCode.INTERNAL
    assert refused.value.message == "Context size has been exceeded."


@pytest.mark.parametrize(
    ("last", "word"),
    [
        ({"stop_type": "word", "stopping_word": "END"}, "END"),
        ({"choices": [], "__verbose": {"stop_type": "word", "stopping_word": "END"}}, "END"),
        ({"stop_type": "eos", "stopping_word": ""}, ""),
        ({"content": 'the "stopping_word"'}, ""),
        ({}, ""),
    ],
)
def test_the_stop_sequence_is_told_in_the_last_event(last: dict[str, object], word: str) -> None:
    assert stopping_word(encoded({"content": "a"}, last)) == word
