import array
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.slices import at_once
from remuda.gateway.inference.floats import short_floats
from remuda.gateway.inference.text_answers import choice_of
from remuda.gateway.openai.rendering import (
    DONE,
    OPENAI,
    ChatRenderer,
    CompletionRenderer,
    embedding_list,
    event,
    rerank_answer,
)
from remuda.inference.answers import NOTHING, Delta, FinishReason, Score, ToolCallDelta, Usage
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest
from remuda.router.loading import LoadStatus
from tests.support.grpc_calls import HELLO, call_of


def test_an_event_is_one_line() -> None:
    assert event(b"{}") == b"data: {}\n\n"


@pytest.mark.parametrize(
    ("written", "before"), [(b"", b""), (b"data: {}\n\n", b""), (b'data: {"half', b"\n\n")]
)
def test_the_last_event_ends_one_that_was_cut_off(written: bytes, before: bytes) -> None:
    assert OPENAI.last_event(b"{}", written) == before + b"data: {}\n\n" + DONE


PROBABILITIES = b'[{"token":"hi","logprob":-0.5,"top_logprobs":[{"token":"ho","logprob":-1}]}]'
STOP = FinishReason.STOP


def _new_chat(**body: object) -> ChatRenderer:
    call = call_of(RequestKind.CHAT, {**HELLO, **body})
    assert isinstance(call.request, ChatRequest)
    return ChatRenderer(call, call.request)


def _chat(**body: object) -> ChatRenderer:
    """One whose first answer is open."""
    renderer = _new_chat(**body)
    renderer.piece(0, Delta("first"))
    return renderer


def _completion(**body: object) -> CompletionRenderer:
    call = call_of(RequestKind.COMPLETION, {"prompt": "p", **body})
    assert isinstance(call.request, CompletionRequest)
    return CompletionRenderer(call, call.request)


def _events(data: bytes) -> list[Any]:
    *events, rest = data.split(b"\n\n")
    assert rest == b""
    return [_event(event + b"\n\n") for event in events]


def _texts(data: bytes) -> list[str]:
    return [event["choices"][0]["text"] for event in _events(data)]


def _event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"}\n\n")
    return json.loads(data.removeprefix(b"data: "))


def test_a_piece_of_a_chat_is_openais() -> None:
    assert _event(_chat().piece(0, Delta("hi"))) == {
        "id": "chatcmpl-r1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}],
    }


@pytest.mark.parametrize("text", ['"quoted"\\', "line\nline\r\n\n", "\x00\x1f", "é🐎\u2028", "</script>"])
def test_any_text_is_one_line_of_json(text: str) -> None:
    data = _chat().piece(0, Delta(text))

    assert _event(data)["choices"][0]["delta"]["content"] == text
    assert data.count(b"\n") == 2


def test_a_piece_may_have_everything_at_once() -> None:
    calls = [ToolCallDelta(0, "c", "f", "{")]

    (choice,) = _event(_chat().piece(0, Delta("hi", "hm", calls, PROBABILITIES)))["choices"]

    called = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    thought = {"reasoning_content": "hm", "reasoning": "hm"}
    assert choice["delta"] == {**thought, "content": "hi", "tool_calls": [called]}
    assert choice["logprobs"] == {"content": json.loads(PROBABILITIES)}


def test_usage_is_told_at_the_end_when_asked_for() -> None:
    renderer = _chat(stream_options={"include_usage": True})

    event, done, rest = renderer.ending(Usage(3, 4)).split(b"\n\n")

    assert _event(renderer.piece(0, Delta("hi")))["usage"] is None
    told = json.loads(event.removeprefix(b"data: "))
    assert told["choices"] == []
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (done, rest) == (b"data: [DONE]", b"")


def test_what_is_known_beside_the_counts_is_told() -> None:
    renderer = _chat(stream_options={"include_usage": True})

    (told, _) = renderer.ending(Usage(10, 4, 8, 3, 5, 20)).split(b"\n\n", 1)

    answer = json.loads(told.removeprefix(b"data: "))
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert answer["timings"] == {
        "cache_n": 8,
        "prompt_n": 2,
        "prompt_ms": 5,
        "prompt_per_token_ms": 2.5,
        "prompt_per_second": 400,
        "predicted_n": 4,
        "predicted_ms": 20,
        "predicted_per_token_ms": 5,
        "predicted_per_second": 200,
    }
    assert json.loads(renderer.whole([], Usage(10, 4, 8, 3, 5, 20)))["timings"] == answer["timings"]


def test_no_rate_is_told_of_nothing() -> None:
    timings = json.loads(_chat().whole([], Usage(0, 0, prompt_ms=0, completion_ms=0)))["timings"]

    assert (timings["prompt_per_second"], timings["predicted_per_token_ms"]) == (0, 0)
    assert "cache_n" not in timings


def test_usage_is_not_told_unasked() -> None:
    renderer = _chat()

    assert renderer.ending(Usage(3, 4)) == DONE
    assert "usage" not in _event(renderer.closing(0, STOP, NOTHING))


def test_each_answer_is_opened_by_the_first_that_is_said_in_it() -> None:
    renderer = _new_chat()

    first, second = _events(renderer.piece(1, Delta("hi")))

    assert first["choices"] == [
        {"index": 1, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    ]
    assert second["choices"] == [{"index": 1, "delta": {"content": "hi"}, "finish_reason": None}]
    assert len(_events(renderer.piece(1, Delta("ho")))) == 1


def test_an_answer_that_says_nothing_is_opened_and_closed() -> None:
    opening, closing = _events(_new_chat().closing(0, STOP, NOTHING))

    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert closing["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]


def test_what_was_held_back_comes_before_the_end_of_its_answer() -> None:
    last, closing = _events(_chat().closing(0, FinishReason.LENGTH, Delta("bye")))

    assert last["choices"][0]["delta"] == {"content": "bye"}
    assert closing["choices"][0]["finish_reason"] == "length"


def test_a_completion_tells_the_prompt_first_when_asked_to() -> None:
    assert _texts(_completion(prompt="once ", echo=True).piece(0, Delta("upon"))) == ["once ", "upon"]
    assert _texts(_completion(prompt="once ").piece(0, Delta("upon"))) == ["upon"]


def test_each_of_several_answers_tells_its_own_prompt() -> None:
    renderer = _completion(prompt=["a", "b"], echo=True, n=2)

    assert [_texts(renderer.piece(index, Delta("x")))[0] for index in range(4)] == ["a", "a", "b", "b"]


def test_probabilities_of_a_completion_stand_in_columns() -> None:
    renderer = _completion(prompt="four", echo=True)
    renderer.piece(0, Delta(" five"))

    (choice,) = _event(renderer.piece(0, Delta("hi", logprobs=PROBABILITIES)))["choices"]

    assert choice["logprobs"] == {
        "tokens": ["hi"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"ho": -1}],
        "text_offset": [9],
    }


def test_a_whole_answer_gathers_calls_by_number() -> None:
    call = call_of(RequestKind.CHAT, HELLO)
    pieces = [
        Delta("a", "x", [ToolCallDelta(1, name="g", arguments="{}")]),
        Delta("b", "y", [ToolCallDelta(0, "c", "f", "{")]),
        Delta(tool_calls=[ToolCallDelta(0, arguments="}")]),
    ]

    choice = choice_of(call, 2, pieces, FinishReason.TOOL_CALLS)

    assert (choice.text, choice.reasoning) == ("ab", "xy")
    assert [(one.id, one.name, one.arguments) for one in choice.calls] == [
        ("c", "f", "{}"),
        ("call_r1_2_1", "g", "{}"),
    ]


def _embeddings(vector: list[float], **body: object) -> bytes:
    request = call_of(RequestKind.EMBEDDING, {"input": "a", **body}).request
    assert isinstance(request, EmbeddingRequest)
    return at_once(embedding_list(request, [vector], Usage(1)))


def test_vectors_are_written_as_floats_of_32_bits() -> None:
    (as_float,) = array.array("f", [0.01])

    assert b"[0.01,1.0,-0.5,1e-7]" in _embeddings([as_float, 1, -0.5, 1e-7])


def test_vectors_are_packed_when_asked_for() -> None:
    answer = json.loads(_embeddings([1, 2], encoding_format="base64"))

    assert base64.b64decode(answer["data"][0]["embedding"]) == b"\0\0\x80\x3f\0\0\0\x40"


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_short_floats_stand_for_the_same_numbers(vector: list[float]) -> None:
    assert array.array("f", short_floats(vector)) == array.array("f", vector)


def _ranking(**body: object) -> Any:
    request = call_of(RequestKind.RERANK, {"query": "q", "documents": ["a", "b", "c"], **body}).request
    assert isinstance(request, RerankRequest)
    scores = [Score(0, 0.25), Score(2, 0.75), Score(9, 1.0)]
    return json.loads(rerank_answer(request, scores, Usage(3, 2)))


def test_the_best_comes_first_and_what_was_not_asked_about_not_at_all() -> None:
    assert _ranking() == {
        "model": "m",
        "object": "list",
        "usage": {"total_tokens": 5, "prompt_tokens": 3},
        "results": [
            {"index": 2, "relevance_score": 0.75, "document": {"text": "c"}},
            {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}},
        ],
    }


def test_no_more_are_told_than_were_asked_for() -> None:
    assert [found["index"] for found in _ranking(top_n=1)["results"]] == [2]


def test_documents_are_left_out_when_nobody_wants_them() -> None:
    assert "document" not in _ranking(return_documents=False)["results"][0]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (LoadStatus("m", "pending", "nas"), "preparing to load m on nas"),
        (LoadStatus("m", "installing", "nas", 41.6), "installing the backend of m on nas: 42%"),
        (LoadStatus("m", "staging", "nas", 0.0, 0, 20), "checking the files of m for nas"),
        (LoadStatus("m", "staging", "nas", 50.0, 10, 20), "copying m to nas: 50%"),
        (LoadStatus("m", "loading", "nas", 80.0), "loading m on nas"),
        (LoadStatus("m", waits_for="nas: no room"), "waiting for m: nas: no room"),
    ],
)
def test_who_waits_is_told_what_is_being_done(status: LoadStatus, words: str) -> None:
    assert OPENAI.loading_comment(status) == f": {words}\n\n".encode()
