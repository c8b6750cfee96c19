"""Ollama's lines: what is streamed comes to the same as what is told at once."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.gateway.inference.text_answers import choice_of
from remuda.gateway.ollama.errors import OLLAMA
from remuda.gateway.ollama.rendering import OllamaTexts, Shape, Spent, embedded
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.model import InferenceCall, RequestKind
from tests.support.grpc_calls import HELLO, call_of

LIKELY = b'[{"token":"a","logprob":-0.5,"top_logprobs":[]}]'
DELTAS = st.lists(
    st.builds(Delta, st.text(max_size=5), st.text(max_size=5), st.just(()), st.just(b""))
    | st.just(Delta("a", logprobs=LIKELY))
)
SHAPES = st.sampled_from([Shape.CHAT, Shape.GENERATE])


def call() -> InferenceCall:
    return call_of(RequestKind.CHAT, HELLO)


def renderer(shape: Shape = Shape.CHAT) -> OllamaTexts:
    return OllamaTexts(call(), "m", shape, lambda: Spent(2.5, 0.5))


def lines(deltas: list[Delta], reason: FinishReason, usage: Usage, shape: Shape = Shape.CHAT) -> list[Any]:
    writing = renderer(shape)
    written = b"".join(writing.piece(0, delta) for delta in deltas)
    written += writing.closing(0, reason, Delta()) + writing.ending(usage)
    assert written.endswith(b"\n")
    return [json.loads(line) for line in written.splitlines()]


def whole(deltas: list[Delta], reason: FinishReason, usage: Usage, shape: Shape = Shape.CHAT) -> Any:
    return json.loads(renderer(shape).whole([choice_of(call(), 0, deltas, reason)], usage))


def said(answer: Any, shape: Shape, member: str) -> str:
    if shape is Shape.CHAT:
        return str(answer["message"].get(member, ""))
    return str(answer.get("response" if member == "content" else member, ""))


@given(DELTAS, SHAPES, st.sampled_from(FinishReason))
def test_a_stream_comes_to_the_whole(deltas: list[Delta], shape: Shape, reason: FinishReason) -> None:
    usage = Usage(3, 2, prompt_ms=1.5, completion_ms=2.0)
    *parts, last = lines(deltas, reason, usage, shape)
    at_once = whole(deltas, reason, usage, shape)
    for member in ("content", "thinking"):
        together = "".join(said(part, shape, member) for part in parts)
        assert together == said(at_once, shape, member)
    assert not any(part["done"] for part in parts)
    ends = ("done", "done_reason", "total_duration", "load_duration", "prompt_eval_count", "eval_count")
    assert [last[name] for name in ends] == [at_once[name] for name in ends]
    assert last["done_reason"] == ("length" if reason is FinishReason.LENGTH else "stop")


def test_durations_are_in_nanoseconds_and_what_is_not_known_is_left_out() -> None:
    told = whole([], FinishReason.STOP, Usage(3, 2, prompt_ms=1.5, completion_ms=2.0))
    assert told["total_duration"] == 2_500_000_000
    assert told["load_duration"] == 500_000_000
    assert (told["prompt_eval_duration"], told["eval_duration"]) == (1_500_000, 2_000_000)
    assert (told["prompt_eval_count"], told["eval_count"]) == (3, 2)
    untold = whole([], FinishReason.STOP, Usage())
    assert not {"prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"} & untold.keys()


def test_a_call_is_told_once_and_whole() -> None:
    pieces = [
        Delta(tool_calls=[ToolCallDelta(0, "c", "look", '{"at":')]),
        Delta(tool_calls=[ToolCallDelta(0, arguments=' "sky"}'), ToolCallDelta(1, name="wait")]),
    ]
    for answer in (
        *lines(pieces, FinishReason.TOOL_CALLS, Usage())[:-1],
        whole(pieces, FinishReason.STOP, Usage()),
    ):
        calls = answer["message"]["tool_calls"]
        assert [one["function"]["name"] for one in calls] == ["look", "wait"]
        assert [one["function"]["arguments"] for one in calls] == [{"at": "sky"}, {}]
        assert calls[0]["id"] == "c"


def test_a_call_whose_arguments_are_none_is_shown_as_the_model_wrote_it() -> None:
    pieces = [Delta(tool_calls=[ToolCallDelta(0, "c", "look", "[up]")])]
    for answer in (
        lines(pieces, FinishReason.TOOL_CALLS, Usage())[0],
        whole(pieces, FinishReason.STOP, Usage()),
    ):
        assert "tool_calls" not in answer["message"]
        assert json.loads(answer["message"]["content"]) == {"name": "look", "arguments": "[up]"}


@given(st.text("a\n\r\x0b\x0c\x1c\x1e\x85\u2028\u2029é", max_size=8))
def test_no_text_ends_a_line_however_a_client_divides_lines(text: str) -> None:
    written = renderer().piece(0, Delta(text)).decode()
    (line,) = written.splitlines()
    assert json.loads(line)["message"]["content"] == text


def test_logprobs_stand_beside_the_text() -> None:
    first, _ = lines([Delta("a", logprobs=LIKELY)], FinishReason.STOP, Usage())
    assert first["logprobs"] == json.loads(LIKELY)


def test_vectors_are_lists_of_short_numbers() -> None:
    work = embedded("m", [[0.1, 2.0], [0.25]], Usage(4), Spent(1.0, 0.0))
    try:
        while True:
            next(work)
    except StopIteration as done:
        answer = msgspec.json.decode(done.value)
    assert answer["embeddings"] == [[0.1, 2.0], [0.25]]
    assert (answer["prompt_eval_count"], answer["total_duration"]) == (4, 1_000_000_000)
    assert "load_duration" not in answer


def test_an_error_ends_a_stream_on_a_line_of_its_own() -> None:
    body = OLLAMA.error(Invalid("too bad")).body
    assert json.loads(body) == {"error": "too bad"}
    assert OLLAMA.last_event(body, b'{"done":false}\n') == body + b"\n"
    assert OLLAMA.last_event(body, b'{"half":') == b"\n" + body + b"\n"
