"""Typed answers on their way to the client's connection."""

import json

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.gateway.openai.answer_sink import OpenAiSink
from remuda.gateway.openai.rendering import DONE
from remuda.inference.answers import AnswerFormat, Delta, FinishReason, Score, Usage
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, RequestKind
from tests.support.answer_sinks import RelayedClient
from tests.support.grpc_calls import HELLO, call_of

pytestmark = pytest.mark.anyio
STOP = FinishReason.STOP


def _sink(call: InferenceCall, response: RelayedClient) -> OpenAiSink:
    return OpenAiSink(call, response, Slicer(SystemClock()))


def _chat(response: RelayedClient, **body: object) -> OpenAiSink:
    return _sink(call_of(RequestKind.CHAT, {**HELLO, **body}), response)


async def test_every_delta_is_one_write_and_so_is_the_end() -> None:
    response = RelayedClient()
    texts = _chat(response, stream=True).texts(1)
    for word in ("one", "two"):
        await texts.write(0, Delta(word))
    await texts.finish(0, STOP, Delta("three"))
    await texts.end(Usage(1, 3))

    assert (response.status, response.content_type) == (200, b"text/event-stream")
    assert [piece.count(b"data: ") for piece in response.pieces] == [2, 1, 3]
    assert response.body.endswith(DONE)


async def test_nothing_is_begun_before_something_is_said() -> None:
    response = RelayedClient()
    sink = _chat(response, stream=True)
    texts = sink.texts(1)
    assert not sink.begun

    await texts.write(0, Delta("one"))
    assert sink.begun


async def test_each_of_several_answers_ends_as_soon_as_it_is_finished() -> None:
    response = RelayedClient()
    texts = _chat(response, stream=True, n=2).texts(2)
    await texts.write(1, Delta("one"))
    await texts.finish(1, STOP)
    assert b'"finish_reason":"stop"' in response.pieces[-1]

    await texts.finish(0, STOP)
    await texts.end(Usage())
    assert response.body.count(b'"finish_reason":"stop"') == 2


async def test_answers_that_are_told_side_by_side_take_turns() -> None:
    class Slow(RelayedClient):
        writing = 0

        async def write(self, data: bytes) -> None:
            self.writing += 1
            assert self.writing == 1
            await anyio.lowlevel.checkpoint()
            self.writing -= 1
            await super().write(data)

    response = Slow()
    texts = _chat(response, stream=True, n=3).texts(3)
    async with anyio.create_task_group() as tasks:
        for index in range(3):
            tasks.start_soon(texts.write, index, Delta("word"))

    assert len(response.pieces) == 3


async def test_a_whole_answer_is_sent_when_all_of_it_is_there() -> None:
    response = RelayedClient()
    texts = _chat(response, n=2).texts(2)
    for index, word in ((1, "b"), (0, "a")):
        await texts.write(index, Delta(word))
        await texts.finish(index, STOP, Delta("!"))
    assert not response.begun

    await texts.end(Usage(1, 2))
    answer = json.loads(response.body)
    assert (response.status, response.content_type) == (200, b"application/json")
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a!", "b!"]
    assert answer["usage"]["total_tokens"] == 3


async def test_what_one_replica_left_unfinished_is_no_part_of_the_next_ones_answer() -> None:
    response = RelayedClient()
    sink = _chat(response)
    await sink.texts(1).write(0, Delta("half"))
    texts = sink.texts(1)
    await texts.finish(0, STOP, Delta("whole"))
    await texts.end(Usage())

    assert json.loads(response.body)["choices"][0]["message"]["content"] == "whole"


async def test_vectors_and_scores_are_whole_answers() -> None:
    embedded, ranked = RelayedClient(), RelayedClient()
    await _sink(call_of(RequestKind.EMBEDDING, {"input": "a"}), embedded).vectors([[0.5]], Usage(2))
    await _sink(call_of(RequestKind.RERANK, {"query": "q", "documents": ["d"]}), ranked).scores(
        [Score(0, 0.5)], Usage(2)
    )

    assert json.loads(embedded.body)["data"][0]["embedding"] == [0.5]
    assert json.loads(ranked.body)["results"][0]["relevance_score"] == 0.5


def test_openais_bytes_are_relayed_as_they_are() -> None:
    response = RelayedClient()

    assert _chat(response).relay(AnswerFormat.OPENAI) is response
