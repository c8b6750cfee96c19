"""OpenAI's answers, decoded."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.inference.text_answers import TextRenderer
from remuda.gateway.openai.rendering import ChatRenderer, CompletionRenderer
from remuda.inference.answers import NOTHING, Delta, FinishReason, Score, ToolCallDelta, Usage
from remuda.inference.failures import ContextExceeded, Fault, UpstreamFailed
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, answer_count
from remuda.upstreams.http.openai_decoder import (
    EVENT_BYTES_MAX,
    AnswerPart,
    StreamDecoder,
    embeddings_in,
    scores_in,
    vector_of,
    whole_text,
)
from tests.support.grpc_calls import HELLO, call_of

_COUNTED = {"stream_options": {"include_usage": True}}
_LOGPROBS = b'[{"token":"hi","logprob":-0.5,"top_logprobs":[{"token":"ho","logprob":-1.0}]}]'
_CALLED = [ToolCallDelta(0, "c1", "weather", '{"in":'), ToolCallDelta(0, arguments='"Rome"}')]


def _chat_renderer() -> ChatRenderer:
    call = call_of(RequestKind.CHAT, {**HELLO, **_COUNTED})
    assert isinstance(call.request, ChatRequest)
    return ChatRenderer(call, call.request)


def _completion_renderer() -> CompletionRenderer:
    call = call_of(RequestKind.COMPLETION, {"prompt": "p", **_COUNTED})
    assert isinstance(call.request, CompletionRequest)
    return CompletionRenderer(call, call.request)


def _decoded(stream: bytes, cuts: list[int] | None = None) -> tuple[list[AnswerPart], StreamDecoder]:
    decoder, edges = StreamDecoder(), [0, *sorted(cuts or []), len(stream)]
    parts = [part for a, b in pairwise(edges) for part in decoder.feed(stream[a:b])]
    return [part for part in parts if part.delta != NOTHING or part.finished], decoder


def _event(**members: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(members).encode()


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
@pytest.mark.parametrize("make", [_chat_renderer, _completion_renderer])
def test_what_was_rendered_is_decoded_however_it_is_cut(
    make: type[TextRenderer], texts: list[str], cuts: list[int]
) -> None:
    renderer = make()
    said = b"".join(renderer.piece(0, Delta(text)) for text in texts)
    stream = said + renderer.closing(0, FinishReason.LENGTH, NOTHING) + renderer.ending(Usage(3, 4))

    parts, decoder = _decoded(stream, [cut for cut in cuts if cut < len(stream)])

    assert [part.delta.text for part in parts] == [*texts, ""]
    assert [part.finished for part in parts] == [None] * len(texts) + [FinishReason.LENGTH]
    assert (decoder.ended, decoder.usage) == (True, Usage(3, 4))


@pytest.mark.parametrize(
    "delta",
    [
        Delta(reasoning="hm"),
        Delta("hi", logprobs=_LOGPROBS),
        Delta(tool_calls=[_CALLED[0]]),
        Delta("hi", "hm", [_CALLED[0]]),
    ],
)
def test_all_that_a_chat_says_is_decoded(delta: Delta) -> None:
    (part,), _ = _decoded(_chat_renderer().piece(0, delta))

    assert part == AnswerPart(0, delta._replace(tool_calls=list(delta.tool_calls)), None)


def test_further_parts_of_a_tool_call_are_told_by_its_index() -> None:
    renderer = _chat_renderer()
    parts, _ = _decoded(b"".join(renderer.piece(0, Delta(tool_calls=[call])) for call in _CALLED))

    assert [part.delta.tool_calls for part in parts] == [[_CALLED[0]], [_CALLED[1]]]


def test_logprobs_of_a_completion_are_turned_from_columns_into_rows() -> None:
    (part,), _ = _decoded(_completion_renderer().piece(0, Delta("hi", logprobs=_LOGPROBS)))

    assert part.delta.logprobs == _LOGPROBS


@pytest.mark.parametrize("logprobs", [{"content": "x"}, {"tokens": 1}, [], 7])
def test_logprobs_that_nobody_can_read_are_left_out(logprobs: object) -> None:
    (part,), _ = _decoded(_event(choices=[{"index": 0, "delta": {"content": "hi"}, "logprobs": logprobs}]))

    assert part.delta == Delta("hi", "", [], b"")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("function_call", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.STOP),
    ],
)
def test_every_finish_reason_ends_the_answer(said: str, meant: FinishReason) -> None:
    (part,), _ = _decoded(_event(choices=[{"index": 0, "text": "", "finish_reason": said}]))

    assert part.finished is meant


def test_nothing_counts_after_the_end_of_the_stream() -> None:
    parts, decoder = _decoded(b"data: [DONE]\n\n" + _event(choices=[{"text": "hi"}]))

    assert (parts, decoder.ended) == ([], True)


@pytest.mark.parametrize(
    "event", [b"data: what?\n\n", b"data: []\n\n", b'data: {"choices":[{"text":1}]}\n\n']
)
def test_an_event_that_is_not_openais_is_a_failure(event: bytes) -> None:
    with pytest.raises(UpstreamFailed, match=r"not OpenAI's JSON") as failed:
        _decoded(event)

    assert failed.value.fault is Fault.BROKE


def test_an_event_without_end_is_a_failure() -> None:
    with pytest.raises(UpstreamFailed, match="8 MiB") as failed:
        _decoded(b"data: " + b"x" * EVENT_BYTES_MAX)

    assert failed.value.fault is Fault.BROKE


def test_an_error_in_the_stream_is_a_failure_in_its_own_words() -> None:
    with pytest.raises(UpstreamFailed, match="out of memory") as failed:
        _decoded(_event(error={"message": "out of memory"}))
    with pytest.raises(ContextExceeded):
        _decoded(_event(error="maximum context length is 5"))

    assert failed.value.fault is Fault.FAILED


def test_a_whole_answer_has_a_part_for_each_choice() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call, call]}
    choices = [{"index": 1, "text": "b"}, {"index": 0, "message": message, "finish_reason": "tool_calls"}]

    parts, usage = whole_text(json.dumps({"choices": choices, "error": None}).encode())

    calls = [ToolCallDelta(0, "c", "f", "{}"), ToolCallDelta(1, "c", "f", "{}")]
    assert parts == [
        AnswerPart(1, Delta("b", "", []), None),
        AnswerPart(0, Delta("", "hm", calls), FinishReason.TOOL_CALLS),
    ]
    assert usage is None


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": 128009}, ""),
        ({"stop_reason": None, "matched_stop": {"odd": 1}}, ""),
    ],
)
def test_the_stop_sequence_is_known_from_servers_that_tell_it(told: dict[str, object], known: str) -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", **told}

    parts, _ = _decoded(_event(choices=[choice]))

    assert [(part.finished, part.stop_sequence) for part in parts] == [(FinishReason.STOP, known)]


_COUNTS = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 7},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
_TIMINGS = {"cache_n": 6, "prompt_n": 2, "prompt_ms": 1.5, "predicted_n": 4, "predicted_ms": 20}


def test_what_a_server_tells_beside_its_counts_is_known() -> None:
    told = {"usage": _COUNTS, "timings": _TIMINGS}
    _, decoder = _decoded(_event(choices=[], **told) + _event(choices=[]))

    assert decoder.usage == Usage(9, 4, 7, 3, 1.5, 20)
    assert whole_text(json.dumps(told).encode())[1] == decoder.usage


def test_the_cached_part_of_a_prompt_is_known_from_timings_alone() -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 4}

    _, usage = whole_text(json.dumps({"usage": counts, "timings": _TIMINGS}).encode())

    assert usage == Usage(9, 4, 6, None, 1.5, 20)


@pytest.mark.parametrize("garbage", [None, "x", 7, [], {"cached_tokens": -1, "prompt_ms": "x"}])
def test_details_that_nobody_can_read_are_left_out(garbage: object) -> None:
    told = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": garbage}, "timings": garbage}

    _, usage = whole_text(json.dumps(told).encode())

    assert usage == Usage(9, 0)


def test_vectors_are_in_order_and_tokens_counted() -> None:
    body = b'{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}],"usage":{"total_tokens":5}}'

    embeddings, usage = embeddings_in(body)

    assert ([vector_of(one) for one in embeddings], usage) == ([[1.0], [2.0]], Usage(0, 5))
    with pytest.raises(UpstreamFailed):
        vector_of(msgspec.Raw(b'"AACAPw=="'))


def test_scores_keep_their_order() -> None:
    body = b'{"results":[{"index":1,"relevance_score":0.5},{"index":0,"relevance_score":0.25}]}'

    assert scores_in(body) == ([Score(1, 0.5), Score(0, 0.25)], Usage())


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        (RequestKind.CHAT, HELLO, 1),
        (RequestKind.CHAT, {**HELLO, "n": 3}, 3),
        (RequestKind.COMPLETION, {"prompt": "a", "n": 2}, 2),
        (RequestKind.COMPLETION, {"prompt": ["a", "b"], "n": 2}, 4),
        (RequestKind.COMPLETION, {"prompt": [1, 2, 3]}, 1),
        (RequestKind.COMPLETION, {"prompt": [[1, 2], [3]]}, 2),
    ],
)
def test_each_prompt_has_as_many_answers_as_are_asked_for(
    kind: RequestKind, body: dict[str, object], count: int
) -> None:
    request = call_of(kind, body).request
    assert isinstance(request, ChatRequest | CompletionRequest)

    assert answer_count(request) == count
