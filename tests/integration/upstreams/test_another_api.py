"""A client of another API than OpenAI's gets the same answer from a gRPC replica and from an HTTP one."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.inference.failures import ContextExceeded, Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind, Upstream
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.upstream import GrpcUpstream
from tests.integration.upstreams import grpc_scripts, scripted_http
from tests.integration.upstreams.grpc_rig import call_of, chat
from tests.integration.upstreams.scripted_http import DONE, LAST_CHUNK, SSE, Script, chunk, says, whole
from tests.support.json_lines_api import JsonLinesClient

pytestmark = pytest.mark.anyio

Replica = Callable[[], AbstractAsyncContextManager[Upstream]]


@asynccontextmanager
async def _grpc(**behaviours: grpc_scripts.Behaviour) -> AsyncIterator[Upstream]:
    async with grpc_scripts.scripted(**behaviours) as address:
        upstream = GrpcUpstream(ReplicaEndpoint(address), SystemClock(), SeededEntropy(7))
        try:
            yield upstream
        finally:
            await upstream.aclose()


@asynccontextmanager
async def _http(script: Script) -> AsyncIterator[Upstream]:
    async with scripted_http.opened_pool() as pool, scripted_http.scripted(script) as server:
        yield scripted_http.upstream_at(server, pool)
        assert pool.busy == 0


def _event(**members: object) -> bytes:
    return chunk(b"data: %b\n\n" % json.dumps(members).encode())


def _said(index: int = 0, finish_reason: str | None = None, **delta: object) -> bytes:
    return _event(choices=[{"index": index, "delta": delta, "finish_reason": finish_reason}])


def _streaming_grpc() -> AbstractAsyncContextManager[Upstream]:
    text, counted = grpc_scripts.text, pb.Reply(tokens=2, prompt_tokens=3)
    thought = pb.Reply(chat_deltas=[pb.ChatDelta(reasoning_content="hm")])
    return _grpc(PredictStream=grpc_scripts.says(thought, text("one"), text(" two"), counted))


def _streaming_http() -> AbstractAsyncContextManager[Upstream]:
    return _http(
        says(
            SSE,
            _said(role="assistant", content=""),
            _said(reasoning_content="hm"),
            _said(content="one"),
            _said(content=" two"),
            _said(finish_reason="stop"),
            _event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
            chunk(DONE),
            LAST_CHUNK,
        )
    )


@pytest.mark.parametrize("replica", [_streaming_grpc, _streaming_http])
async def test_a_chat_is_streamed_in_the_clients_own_format(replica: Replica) -> None:
    client, call = JsonLinesClient(), chat()

    async with replica() as upstream:
        await upstream.serve(call, client)

    assert client.lines == [
        {"index": 0, "message": {"content": "", "thinking": "hm"}, "done": False},
        {"index": 0, "message": {"content": "one"}, "done": False},
        {"index": 0, "message": {"content": " two"}, "done": False},
        {"done": True, "done_reason": ["stop"], "prompt_eval_count": 3, "eval_count": 2},
    ]
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (3, 2)
    assert call.tally.first_token_s is not None


def _calling_grpc() -> AbstractAsyncContextManager[Upstream]:
    async def predict(request: pb.PredictOptions, context: object) -> pb.Reply:
        called = pb.ToolCallDelta(index=0, id="c1", name="weather", arguments='{"in":"Rome"}')
        return pb.Reply(chat_deltas=[pb.ChatDelta(tool_calls=[called])], tokens=2, prompt_tokens=3)

    return _grpc(Predict=predict)


def _calling_http() -> AbstractAsyncContextManager[Upstream]:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"in":"Rome"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    return _http(says(whole(json.dumps(answer).encode())))


@pytest.mark.parametrize("replica", [_calling_grpc, _calling_http])
async def test_a_whole_answer_has_its_tool_calls(replica: Replica) -> None:
    client = JsonLinesClient()

    async with replica() as upstream:
        await upstream.serve(chat(stream=False), client)

    said, end = client.lines
    assert said["message"]["tool_calls"] == [["weather", '{"in":"Rome"}']]
    assert (end["done_reason"], end["eval_count"]) == (["tool_calls"], 2)


def _embedding_grpc() -> AbstractAsyncContextManager[Upstream]:
    async def embed(request: pb.PredictOptions, context: object) -> pb.EmbeddingResult:
        return pb.EmbeddingResult(embeddings=[0.5 if request.Embeddings == "a" else 0.25], prompt_tokens=1)

    return _grpc(Embedding=embed)


def _embedding_http() -> AbstractAsyncContextManager[Upstream]:
    data = [{"index": 1, "embedding": [0.25]}, {"index": 0, "embedding": [0.5]}]
    answer = {"data": data, "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    return _http(says(whole(json.dumps(answer).encode())))


@pytest.mark.parametrize("replica", [_embedding_grpc, _embedding_http])
async def test_vectors_come_in_the_order_of_their_inputs(replica: Replica) -> None:
    client = JsonLinesClient()

    async with replica() as upstream:
        await upstream.serve(call_of(RequestKind.EMBEDDING, {"input": ["a", "b"]}), client)

    assert client.lines == [{"embeddings": [[0.5], [0.25]], "prompt_eval_count": 2}]


def _ranking_grpc() -> AbstractAsyncContextManager[Upstream]:
    async def rank(request: pb.RerankRequest, context: object) -> pb.RerankResult:
        return pb.RerankResult(results=[pb.DocumentResult(index=1, relevance_score=0.5)])

    return _grpc(Rerank=rank)


def _ranking_http() -> AbstractAsyncContextManager[Upstream]:
    return _http(says(whole(b'{"results":[{"index":1,"relevance_score":0.5}]}')))


@pytest.mark.parametrize("replica", [_ranking_grpc, _ranking_http])
async def test_scores_are_passed_on(replica: Replica) -> None:
    client = JsonLinesClient()

    async with replica() as upstream:
        await upstream.serve(call_of(RequestKind.RERANK, {"query": "q", "documents": ["x", "y"]}), client)

    assert client.lines == [{"scores": {"1": 0.5}}]


# What an HTTP replica is asked, and how it fails, when its answer is decoded.


async def _asked(call: InferenceCall, answer: bytes) -> Any:
    async with scripted_http.opened_pool() as pool, scripted_http.scripted(says(answer)) as server:
        await scripted_http.upstream_at(server, pool).serve(call, JsonLinesClient())
    return json.loads(server.requests[0].body)


async def test_usage_is_asked_for_and_what_else_the_request_has_is_kept() -> None:
    answer = SSE + _said(content="hi", finish_reason="stop") + chunk(DONE) + LAST_CHUNK

    asked = await _asked(chat(odd=1, stream_options={"include_usage": False}), answer)

    assert (asked["stream_options"], asked["odd"], asked["model"]) == ({"include_usage": True}, 1, "polly")


async def test_vectors_are_asked_for_as_numbers() -> None:
    call = call_of(RequestKind.EMBEDDING, {"input": "a", "encoding_format": "base64"})

    asked = await _asked(call, whole(b'{"data":[{"embedding":[1]}]}'))

    assert asked["encoding_format"] == "float"


async def _failure(
    script: Script, call: InferenceCall | None = None
) -> tuple[UpstreamFailed, JsonLinesClient]:
    client = JsonLinesClient()
    async with _http(script) as upstream:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.serve(call or chat(), client)
    return failed.value, client


@pytest.mark.parametrize(
    ("script", "fault", "status"),
    [
        (says(whole(b'{"error":{"message":"no"}}', "400 Bad Request")), Fault.REFUSED, 400),
        (says(whole(b'{"error":{"message":"slow down"}}', "429 Too Many")), Fault.REFUSED, 429),
        (says(whole(b"it crashed", "500 Internal Server Error")), Fault.FAILED, 502),
        (says(whole(b"{}")), Fault.BROKE, 502),
        (says(SSE, chunk(b"data: what?\n\n"), LAST_CHUNK), Fault.BROKE, 502),
        (says(SSE, _said(index=1, content="hi"), LAST_CHUNK), Fault.BROKE, 502),
        (says(SSE, chunk(DONE), LAST_CHUNK), Fault.FAILED, 502),
    ],
)
async def test_a_failure_before_the_first_word_leaves_the_client_untouched(
    script: Script, fault: Fault, status: int
) -> None:
    failed, client = await _failure(script)

    assert (failed.fault, failed.status, client.begun) == (fault, status, False)


async def test_an_error_in_the_stream_is_raised() -> None:
    error = _event(error={"message": "the prompt exceeds the available context size", "code": 400})

    failed, client = await _failure(says(SSE, _said(content="hi"), error, LAST_CHUNK))

    assert isinstance(failed, ContextExceeded)
    assert [line["message"]["content"] for line in client.lines] == ["hi"]


async def test_a_stream_without_its_end_is_broken_off() -> None:
    failed, client = await _failure(says(SSE, _said(content="hi", finish_reason="stop"), LAST_CHUNK))

    assert (failed.fault, client.lines[-1]["done"]) == (Fault.BROKE, False)


async def test_fewer_answers_than_were_asked_for_are_a_failure() -> None:
    one = _said(content="hi", finish_reason="stop")

    failed, _ = await _failure(says(SSE, one, chunk(DONE), LAST_CHUNK), chat(n=2))

    assert failed.message == "the backend gave 1 of the 2 answers asked for"
