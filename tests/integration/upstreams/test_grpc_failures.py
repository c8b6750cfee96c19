"""Backends that misbehave: the fault that is told, and that nothing is left open."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Invalid
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import RequestKind
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.upstream import GrpcTimeouts
from tests.integration.backends.programs import loaded
from tests.integration.upstreams.grpc_rig import Client, Rendered, call_of, chat, upstream_at
from tests.integration.upstreams.grpc_scripts import Open, says, says_then_fails, scripted, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SETTINGS = bytes(3) + b"\x04" + bytes(5)  # The first thing an HTTP/2 server says.
OTHER = ModelConfig.model_validate({"name": "otto", "backend": "echo", "parameters": {"model": "raven"}})


async def _failure(upstream: Rendered, client: Client | None = None, **body: Any) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as failed:
        await upstream.serve(chat(**body), client or Client())
    return failed.value


@pytest.mark.parametrize(
    ("code", "details", "fault", "status", "message"),
    [
        ("FAILED_PRECONDITION", "no", Fault.NOT_LOADED, 503, "the replica does not hold polly: no"),
        (
            "UNKNOWN",
            "Model not loaded",
            Fault.NOT_LOADED,
            503,
            "the replica does not hold polly: Model not loaded",
        ),
        ("NOT_FOUND", "no such voice", Fault.FAILED, 502, "the backend of polly failed: no such voice"),
        ("UNAVAILABLE", "gone", Fault.UNREACHABLE, 502, "the backend of polly cannot be reached: gone"),
        ("INVALID_ARGUMENT", "bad", Fault.REFUSED, 400, "the backend of polly refuses this: bad"),
        ("UNIMPLEMENTED", "", Fault.REFUSED, 400, "polly does not do chat"),
        ("UNIMPLEMENTED", "Method not found!", Fault.REFUSED, 400, "polly does not do chat"),
        (
            "RESOURCE_EXHAUSTED",
            "memory",
            Fault.FAILED,
            429,
            "the backend of polly is out of resources: memory",
        ),
        ("DEADLINE_EXCEEDED", "late", Fault.SILENT, 504, "the backend of polly ran out of time: late"),
        ("CANCELLED", "stop", Fault.BROKE, 502, "the backend of polly broke off: stop"),
        ("INTERNAL", "oops", Fault.FAILED, 502, "the backend of polly failed: oops"),
        (
            "UNAUTHENTICATED",
            "invalid token",
            Fault.UNREACHABLE,
            502,
            "the backend of polly does not let this frontend in: invalid token",
        ),
    ],
)
async def test_a_status_has_its_answer(
    code: str, details: str, fault: Fault, status: int, message: str
) -> None:
    client = Client()

    async with (
        scripted(PredictStream=says_then_fails(grpc.StatusCode[code], details)) as address,
        upstream_at(address) as upstream,
    ):
        failure = await _failure(upstream, client)

    assert (failure.fault, failure.status, failure.message) == (fault, status, message)
    assert not client.begun


async def test_a_backend_lost_in_mid_sentence_has_broken_off() -> None:
    client, call = Client(), chat()
    breaking = says_then_fails(grpc.StatusCode.UNAVAILABLE, "gone", text("hi", tokens=1))

    async with scripted(PredictStream=breaking) as address, upstream_at(address) as upstream:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.serve(call, client)

    assert (failed.value.fault, client.begun, call.tally.completion_tokens) == (Fault.BROKE, True, 1)


async def test_a_port_where_nothing_listens_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    async with upstream_at(f"127.0.0.1:{port}") as upstream:
        failure = await _failure(upstream)

    assert failure.fault is Fault.UNREACHABLE
    assert str(port) not in failure.message


@pytest.mark.parametrize("greeting", [b"", SETTINGS], ids=["at once", "after the handshake"])
async def test_garbage_on_the_connection_is_a_break(greeting: bytes) -> None:
    async with _garbage_after(greeting) as address, upstream_at(address) as upstream:
        failure = await _failure(upstream)

    assert (failure.fault, failure.status) == (Fault.BROKE, 502)
    assert failure.message == "the backend of polly answered what cannot be understood"


async def test_a_backend_that_says_nothing_for_too_long_is_silent() -> None:
    calls = Open()

    async def hanging(request: pb.PredictOptions, context: Any) -> None:
        with calls.counted():
            await context.write(text("hi"))
            await anyio.sleep_forever()

    client = Client()
    async with (
        scripted(PredictStream=hanging) as address,
        upstream_at(address, timeouts=GrpcTimeouts(silence_s=0.2)) as upstream,
    ):
        failure = await _failure(upstream, client)
        await wait_until(lambda: not calls.now, what="the call's end at the backend")

    assert (failure.fault, failure.status) == (Fault.SILENT, 504)
    assert failure.message == "the backend of polly said nothing for 0.2 s"


async def test_a_whole_answer_is_not_waited_for_forever() -> None:
    async def hanging(request: pb.PredictOptions, context: Any) -> pb.Reply:
        await anyio.sleep_forever()
        return pb.Reply()

    async with (
        scripted(Predict=hanging) as address,
        upstream_at(address, timeouts=GrpcTimeouts(whole_s=0.2)) as upstream,
    ):
        failure = await _failure(upstream, stream=False)

    assert failure.fault is Fault.SILENT


async def test_a_client_that_reads_slowly_is_not_the_backends_silence() -> None:
    silence_s = 0.2

    class Slow(Client):
        async def write(self, data: bytes) -> None:
            await anyio.sleep(1.5 * silence_s)
            await super().write(data)

    client = Slow()
    async with (
        scripted(
            PredictStream=says_then_fails(grpc.StatusCode.INTERNAL, "end", text("a"), text("b"))
        ) as address,
        upstream_at(address, timeouts=GrpcTimeouts(silence_s)) as upstream,
    ):
        failure = await _failure(upstream, client)

    assert (failure.fault, len(client.writes)) == (Fault.FAILED, 2)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_leaving_cancels_the_generation_at_once(stream: bool) -> None:
    calls = Open()

    async def endless(request: pb.PredictOptions, context: Any) -> None:
        with calls.counted():
            await anyio.sleep_forever()

    async with (
        scripted(PredictStream=endless, Predict=endless) as address,
        upstream_at(address) as upstream,
        anyio.create_task_group() as group,
    ):
        group.start_soon(upstream.serve, chat(stream=stream), Client())
        await wait_until(lambda: calls.now == 1, what="a call at the backend")
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await wait_until(lambda: not calls.now, within=1.0, what="the call's end at the backend")


class Leaving(Client):
    """Leaves when it has read so much."""

    def __init__(self, scope: anyio.CancelScope, writes_max: int) -> None:
        super().__init__()
        self._scope = scope
        self._left = writes_max

    async def write(self, data: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            self._scope.cancel()
        await super().write(data)


async def test_clients_that_leave_at_any_moment_leave_no_call_open() -> None:
    calls, dice = Open(), SeededEntropy(5)

    async def chatter(request: pb.PredictOptions, context: Any) -> None:
        with calls.counted():
            for _ in range(5):
                await context.write(text("word "))

    async def predict(request: pb.PredictOptions, context: Any) -> pb.Reply:
        with calls.counted():
            return text("word")

    async def leave_some_time(upstream: Rendered) -> None:
        with anyio.CancelScope() as scope:
            if dice.fraction() < 0.3:
                scope.deadline = anyio.current_time() + 0.1 * dice.fraction()
            stream = dice.fraction() < 0.7
            await upstream.serve(chat(stream=stream), Leaving(scope, int(9 * dice.fraction())))

    async with scripted(PredictStream=chatter, Predict=predict) as address, upstream_at(address) as upstream:
        for _ in range(100):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(leave_some_time, upstream)
        assert upstream.open_calls == 0
        await wait_until(lambda: not calls.now, what="the end of all calls")

    assert calls.ever > 1000


async def test_one_failure_of_several_answers_ends_the_others() -> None:
    calls = Open()

    async def behaviour(request: pb.PredictOptions, context: Any) -> None:
        with calls.counted():
            if request.Seed == 2:
                await wait_until(lambda: calls.now == 3, what="three calls")
                await context.abort(grpc.StatusCode.INTERNAL, "the third fails")
            await anyio.sleep_forever()

    async with scripted(PredictStream=behaviour) as address, upstream_at(address) as upstream:
        failure = await _failure(upstream, n=3, seed=0)
        await wait_until(lambda: not calls.now, what="the end of all calls")

    assert failure.message == "the backend of polly failed: the third fails"


async def test_a_forgotten_upstream_finishes_what_it_began() -> None:
    go_on = anyio.Event()

    async def waiting(request: pb.PredictOptions, context: Any) -> None:
        await context.write(text("one "))
        await go_on.wait()
        await context.write(text("two"))

    client = Client()
    async with (
        scripted(PredictStream=waiting) as address,
        upstream_at(address) as upstream,
        anyio.create_task_group() as group,
    ):
        group.start_soon(upstream.serve, chat(), client)
        await wait_until(lambda: client.begun, what="the first word")
        await upstream.aclose()
        go_on.set()
        await wait_until(lambda: not upstream.open_calls, what="the call's end")
        failure = await _failure(upstream)

    assert client.text == "one two"
    assert failure.fault is Fault.UNREACHABLE


async def test_a_backend_that_dies_at_its_fifth_token_has_broken_off(tmp_path: Path) -> None:
    client = Client()

    with loaded(tmp_path) as (process, _):
        async with upstream_at(process.address) as upstream:
            # With time between tokens, or the process is gone before they are sent.
            dying = {"echo_crash_at_token": "5", "echo_token_rate": "20"}
            failure = await _failure(upstream, client, text="1 2 3 4 5 6 7", metadata=dying)

    assert failure.fault is Fault.BROKE
    assert b'"content":" 5"' in client.body
    assert b"[DONE]" not in client.body


async def test_a_call_for_another_model_finds_it_not_loaded(tmp_path: Path) -> None:
    with loaded(tmp_path) as (process, _):
        async with upstream_at(process.address) as upstream:
            failure = await _failure(upstream, model=OTHER)

    assert (failure.fault, failure.status) == (Fault.NOT_LOADED, 503)
    assert "model identity mismatch" in failure.message


async def test_a_request_larger_than_backends_take_is_refused() -> None:
    async with scripted(PredictStream=says()) as address, upstream_at(address) as upstream:
        failure = await _failure(upstream, text="x" * (51 << 20))

    assert (failure.fault, failure.status) == (Fault.REFUSED, 413)
    assert failure.message == "the request is too large for the backend of polly, which takes 50 MiB"


async def test_a_reply_larger_than_we_take_is_the_backends_failure() -> None:
    huge = says(pb.Reply(message=b"x" * (65 << 20)))

    async with scripted(PredictStream=huge) as address, upstream_at(address) as upstream:
        failure = await _failure(upstream)

    assert (failure.fault, failure.status) == (Fault.FAILED, 502)
    assert failure.message == "the backend of polly sent more than 64 MiB in one message"


async def test_what_a_backend_cannot_do_is_refused() -> None:
    async with scripted() as address, upstream_at(address) as upstream:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.serve(call_of(RequestKind.RERANK, {"query": "q", "documents": ["d"]}), Client())

    assert (failed.value.fault, failed.value.status) == (Fault.REFUSED, 400)


@asynccontextmanager
async def _garbage_after(greeting: bytes) -> AsyncIterator[str]:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(greeting or b"\xff" * 200)
            await stream.receive()
            if greeting:
                await stream.send(b"\xff" * 200)
            async for _ in stream:
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


async def test_a_grammar_that_ended_an_engine_is_not_sent_again() -> None:
    mark = ("remuda-engine-ended", "this-call")
    ended = says_then_fails(grpc.StatusCode.INVALID_ARGUMENT, "too long", metadata=(mark,))
    async with scripted(PredictStream=ended) as address, upstream_at(address) as upstream:
        assert (await _failure(upstream, grammar='root ::= "s"')).status == 400
        with pytest.raises(Invalid, match="held an engine 0 minutes ago"):
            await upstream.serve(chat(grammar='root ::= "s"'), Client())
        assert (await _failure(upstream, grammar='root ::= "t"')).status == 400


async def test_an_engine_that_is_ended_after_its_client_left_counts_against_the_grammar() -> None:
    asked, ended = anyio.Event(), anyio.Event()

    async def held(request: pb.PredictOptions, context: Any) -> None:
        asked.set()
        await ended.wait()
        mark = ("remuda-engine-ended", "this-call")
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too ambiguous", (mark,))

    async with (
        scripted(PredictStream=held) as address,
        upstream_at(address) as upstream,
        upstream.translation.left.open(),
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.serve, chat(grammar='root ::= "a"'), Client())
            await asked.wait()
            tasks.cancel_scope.cancel()
        ended.set()
        await wait_until(partial(_refuses, upstream, 'root ::= "a"'), what="the verdict")


def _refuses(upstream: Rendered, grammar: str) -> bool:
    try:
        upstream.translation.held.check(pb.PredictOptions(Grammar=grammar))
    except Invalid as error:
        return "held an engine" in error.message
    return False


async def test_a_call_whose_client_left_ends_with_the_next_word() -> None:
    asked, calls = anyio.Event(), Open()

    async def talkative(request: pb.PredictOptions, context: Any) -> None:
        with calls.counted():
            asked.set()
            while True:
                await context.write(text("hi"))

    async with (
        scripted(PredictStream=talkative) as address,
        upstream_at(address) as upstream,
        upstream.translation.left.open(),
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.serve, chat(grammar='root ::= "hi"+'), Client())
            await asked.wait()
            tasks.cancel_scope.cancel()
        await wait_until(lambda: calls.now == 0, what="the backend's call to end")
