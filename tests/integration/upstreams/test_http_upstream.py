"""A replica that speaks HTTP, from the request to the last word of its answer, over real sockets."""

import json
import tracemalloc
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.abc import SocketStream

from remuda.core.entropy import SeededEntropy
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import EmbeddingRequest, RerankRequest
from remuda.models.config import ModelConfig
from remuda.upstreams.http.client import Pool
from tests.integration.upstreams.scripted_http import (
    DONE,
    LAST_CHUNK,
    SSE,
    TOKEN,
    HangUp,
    Notebook,
    Script,
    chat,
    chunk,
    opened_pool,
    says,
    says_and_hangs,
    scripted,
    upstream_at,
    whole,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_ANSWER = b'{"id":"1","model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}'
_STREAM = (SSE, chunk(TOKEN), chunk(TOKEN), chunk(DONE), LAST_CHUNK)


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with opened_pool() as opened:
        yield opened


async def _served(script: Script, pool: Pool, call: InferenceCall) -> Notebook:
    sink = Notebook()
    async with scripted(script) as server:
        await upstream_at(server, pool).serve(call, sink)
    return sink


async def _failed(script: Script, pool: Pool, sink: Notebook, *, stream: bool = False) -> UpstreamFailed:
    async with scripted(script) as server:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream_at(server, pool).serve(chat(stream=stream), sink)
    assert pool.busy == 0
    return failed.value


# Relaying.


async def test_an_answer_is_passed_on_and_its_usage_noted(pool: Pool) -> None:
    call = chat()

    sink = await _served(says(whole(_ANSWER, kind="application/json; charset=utf-8")), pool, call)

    assert (sink.status, sink.content_type) == (200, b"application/json; charset=utf-8")
    assert sink.body == _ANSWER
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (3, 5)


async def test_a_stream_is_passed_on_and_its_tokens_counted(pool: Pool) -> None:
    call = chat(stream=True)

    sink = await _served(says(*_STREAM), pool, call)

    assert (sink.status, sink.content_type) == (200, b"text/event-stream")
    assert sink.body == TOKEN + TOKEN + DONE
    assert call.tally.completion_tokens == 2
    assert call.tally.first_token_s is not None
    assert call.tally.last_token_s is not None
    assert call.tally.last_token_s >= call.tally.first_token_s


async def test_usage_told_at_the_end_of_a_stream_counts_more_than_what_was_counted(pool: Pool) -> None:
    call = chat(stream=True)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}}\n\n'

    await _served(says(SSE, chunk(TOKEN), chunk(usage + DONE), LAST_CHUNK), pool, call)

    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (11, 22)


@pytest.mark.parametrize(
    ("kind", "request_", "path"),
    [
        (RequestKind.EMBEDDING, EmbeddingRequest(model="m", input="x"), "/v1/embeddings"),
        (RequestKind.RERANK, RerankRequest(model="m", query="x", documents=["y"]), "/v1/rerank"),
    ],
)
async def test_each_kind_has_its_path_below_the_workers_door(
    pool: Pool, kind: RequestKind, request_: EmbeddingRequest | RerankRequest, path: str
) -> None:
    call = InferenceCall(kind, request_, b'{"model":"m"}', ModelConfig(name="m"), "r", 0)
    async with scripted(says(whole(_ANSWER))) as server:
        await upstream_at(server, pool).serve(call, Notebook())

    head = server.requests[0].head.split("\r\n")
    assert head[0] == f"POST /v1/processes/m%230{path} HTTP/1.1"
    assert "Authorization: Bearer s3cret" in head


async def test_a_request_is_sent_as_it_was_written_when_the_names_agree(pool: Pool) -> None:
    body = b'{ "model" : "m", "messages": [], "odd":1e2 }'
    async with scripted(says(whole(_ANSWER))) as server:
        await upstream_at(server, pool).serve(chat(body=body), Notebook())

    assert server.requests[0].body == body


async def test_the_models_own_name_goes_in_and_the_askers_comes_back(pool: Pool) -> None:
    body = b'{"model":"alias","messages":[{"role":"user","content":"\\"model\\":\\"alias\\""}],"x":1.0}'
    said = b'{"model":"m","choices":[{"text":"\\"model\\":\\"m\\""}]}'
    sink = Notebook()
    async with scripted(says(whole(said))) as server:
        await upstream_at(server, pool).serve(chat(model="alias", body=body), sink)

    assert json.loads(server.requests[0].body) == {**json.loads(body), "model": "m"}
    assert json.loads(sink.body) == {**json.loads(said), "model": "alias"}


async def test_in_a_stream_each_event_has_the_askers_name(pool: Pool) -> None:
    cut = TOKEN.index(b"model") + 3
    script = says(SSE, chunk(TOKEN), chunk(TOKEN[:cut]), chunk(TOKEN[cut:] + DONE), LAST_CHUNK)

    sink = await _served(script, pool, chat(stream=True, model="alias"))

    assert sink.body == TOKEN.replace(b'"m"', b'"alias"') * 2 + DONE


# Refusals and failures.


async def test_what_the_engine_has_against_a_request_reaches_the_client(pool: Pool) -> None:
    said = b'{"error":{"message":"too long","type":"invalid_request_error","code":400}}'

    sink = await _served(says(whole(said, "400 Bad Request")), pool, chat(stream=True))

    assert (sink.status, sink.content_type, sink.body) == (400, b"application/json", said)


async def test_an_error_after_the_client_was_told_to_wait_is_raised(pool: Pool) -> None:
    sink = Notebook(status=200)

    failed = await _failed(
        says(whole(b'{"error":{"message":"too long"}}', "400 Bad")), pool, sink, stream=True
    )

    assert (failed.fault, failed.status, failed.message) == (Fault.REFUSED, 400, "too long")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (says(hang_up=True), Fault.UNREACHABLE),
        (says(b"\x00\x01 what?"), Fault.BROKE),
        (says(whole(b"<html>", kind="text/html")), Fault.BROKE),
        (
            says(whole(b"not ready", "503 Service Unavailable", more="x-remuda-refusal: not_ready\r\n")),
            Fault.NOT_LOADED,
        ),
        (says(whole(b"it crashed", "500 Internal Server Error")), Fault.FAILED),
        (says(SSE, hang_up=True), Fault.BROKE),
    ],
)
async def test_a_failure_before_the_first_word_leaves_the_client_untouched(
    pool: Pool, script: Script, fault: Fault, stream: bool
) -> None:
    sink = Notebook()

    failed = await _failed(script, pool, sink, stream=stream)

    assert (failed.fault, sink.begun) == (fault, False)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"a":', b'{"a":1} x', b"[" * 5000])
async def test_an_answer_that_is_no_json_object_is_not_passed_on(pool: Pool, body: bytes) -> None:
    sink = Notebook()

    failed = await _failed(says(whole(body)), pool, sink)

    assert (failed.fault, sink.begun) == (Fault.BROKE, False)


@pytest.mark.parametrize(
    ("script", "passed"),
    [
        (says(SSE, chunk(TOKEN), hang_up=True), TOKEN),
        (says(SSE, chunk(TOKEN), LAST_CHUNK), TOKEN),
        (says(SSE, chunk(TOKEN), chunk(TOKEN[:20]), hang_up=True), TOKEN),
        (says(SSE, chunk(TOKEN), chunk(TOKEN[:20]), LAST_CHUNK), TOKEN),
        (says(SSE, chunk(TOKEN), chunk(TOKEN[:-1]), b"garbage"), TOKEN * 2),
    ],
)
async def test_a_stream_that_breaks_leaves_whole_events(pool: Pool, script: Script, passed: bytes) -> None:
    sink = Notebook()

    failed = await _failed(script, pool, sink, stream=True)

    assert (failed.fault, sink.body) == (Fault.BROKE, passed)


async def test_a_whole_answer_that_breaks_off_can_be_given_to_another(pool: Pool) -> None:
    sink = Notebook()
    half = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"

    failed = await _failed(says(half, hang_up=True), pool, sink)

    assert (failed.elsewhere, sink.begun) == (True, False)


# Size and pace.


class _Passing(Notebook):
    """Counts, and keeps nothing but the beginning and the end."""

    size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        self.pieces = [*self.pieces[:1], data[:200] if not self.pieces else data[-200:]]


@pytest.mark.parametrize("asked", ["m", "alias"])
@pytest.mark.parametrize("stream", [False, True])
async def test_ten_megabytes_in_one_message_pass_through_bounded_memory(
    pool: Pool, stream: bool, asked: str
) -> None:
    text = b"x" * 65536
    told = b'","model":"m","usage":{"prompt_tokens":7,"completion_tokens":8}}'

    async def huge(connection: SocketStream) -> None:
        kind = b"text/event-stream" if stream else b"application/json"
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n" % kind)
        await connection.send(b'data: {"text":"' if stream else b'{"text":"')
        for _ in range(160):
            await connection.send(text)
        await connection.send(told + (b"\n\n" + DONE if stream else b""))
        raise HangUp

    sink, call = _Passing(), chat(stream=stream, model=asked)
    async with scripted(huge) as server:
        upstream = upstream_at(server, pool)
        tracemalloc.start()
        await upstream.serve(call, sink)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert sink.size > 160 * 65536
    assert b'"model":"%s"' % asked.encode() in sink.pieces[-1]
    assert peak_bytes < 8 << 20
    assert (call.tally.prompt_tokens, call.tally.completion_tokens) == (7, 8)


@pytest.mark.parametrize("script", [says_and_hangs(), says_and_hangs(SSE, chunk(TOKEN))])
async def test_a_client_that_leaves_ends_the_request_on_the_server_within_a_second(
    pool: Pool, script: Script
) -> None:
    async with scripted(script) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(upstream_at(server, pool).serve, chat(stream=True), Notebook())
        await wait_until(lambda: len(server.requests) == 1)

        tasks.cancel_scope.cancel()

        with anyio.CancelScope(shield=True):
            await wait_until(lambda: server.open == 0, within=1.0)
    assert (pool.busy, pool.idle) == (0, 0)


class _ClientGone(Exception):
    pass


class _Leaving(Notebook):
    async def write(self, data: bytes) -> None:
        raise _ClientGone


async def test_a_client_found_gone_ends_the_request_on_the_server(pool: Pool) -> None:
    async with scripted(says_and_hangs(SSE, chunk(TOKEN))) as server:
        with pytest.raises(_ClientGone):
            await upstream_at(server, pool).serve(chat(stream=True), _Leaving())

        await wait_until(lambda: server.open == 0, within=1.0)


@pytest.mark.parametrize("requests", [1000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_requests_with_random_leavers_and_breaks_leave_no_socket_open(
    pool: Pool, requests: int
) -> None:
    chance, left, broke = SeededEntropy(6), 0, 0

    async def moody(stream: SocketStream) -> None:
        await stream.send(SSE + chunk(TOKEN))
        if chance.fraction() < 0.1:
            raise HangUp
        await anyio.sleep(chance.fraction() * 0.004)
        await stream.send(chunk(TOKEN + DONE) + LAST_CHUNK)

    async def some(count: int) -> None:
        nonlocal left, broke
        for _ in range(count):
            stays_s = 0.03 if chance.fraction() < 0.5 else 30.0
            with anyio.move_on_after(chance.fraction() * stays_s) as scope:
                try:
                    await upstream_at(server, pool).serve(chat(stream=True), Notebook())
                except UpstreamFailed:
                    broke += 1
            left += scope.cancelled_caught

    async with scripted(moody) as server:
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(some, requests // 50)

        assert pool.busy == 0
        assert pool.idle <= 50
        await wait_until(lambda: server.open == pool.idle)
        pool.close()
        await wait_until(lambda: server.open == 0)
    assert left  # How many is up to the machine's speed.
    assert broke
