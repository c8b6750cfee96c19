"""Calls to a server of the gRPC library."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.upstreams.grpc.channels import SERVICE, Channel, GrpcCall
from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus, HungUp
from tests.integration.upstreams.grpc_scripts import Open
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Unary = Callable[[bytes, Any], Awaitable[bytes]]
Stream = Callable[[bytes, Any], AsyncIterator[bytes]]
_BIG = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PATIENCE_S = 60.0


async def _mirror(request: bytes, context: Any) -> bytes:
    return request[::-1]


async def _letters(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for letter in request:
        yield bytes((letter,))


@asynccontextmanager
async def _serving(
    unary: Unary = _mirror, stream: Stream = _letters, port: int = 0, **options: int
) -> AsyncIterator[tuple[Channel, int]]:
    """A channel to a server whose `Predict` and `PredictStream` are these, and its port."""
    given = [(f"grpc.{name}", value) for name, value in options.items()]
    server = grpc.aio.server(options=[*_BIG, *given])
    handlers = {
        "Predict": grpc.unary_unary_rpc_method_handler(unary),
        "PredictStream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    channel = Channel(f"127.0.0.1:{port}", "secret")
    try:
        yield channel, port
    finally:
        channel.close()
        await server.stop(None)


async def _whole(channel: Channel, request: bytes = b"ask") -> bytes:
    with GrpcCall(await channel.call("Predict", request), PATIENCE_S) as exchange:
        return await exchange.whole()


async def _all(channel: Channel, request: bytes = b"ask") -> list[bytes]:
    messages = []
    with GrpcCall(await channel.call("PredictStream", request), PATIENCE_S) as exchange:
        while (message := await exchange.read()) is not None:
            messages.append(message)
    return messages


async def test_messages_go_both_ways() -> None:
    async with _serving() as (channel, _):
        assert await _whole(channel, b"ask") == b"ksa"
        assert await _whole(channel, b"") == b""
        assert await _all(channel, b"ask") == [b"a", b"s", b"k"]
        assert await _all(channel, b"") == []


async def test_the_server_sees_who_calls() -> None:
    seen: dict[str, str] = {}

    async def look(request: bytes, context: Any) -> bytes:
        seen.update(context.invocation_metadata())
        return b""

    async with _serving(unary=look) as (channel, _):
        await _whole(channel)

    assert (seen["authorization"], seen["user-agent"]) == ("Bearer secret", "remuda")


async def test_large_messages_go_both_ways() -> None:
    request = bytes(range(256)) * (limits.SENT_BYTES_MAX // 256)

    async def more(request: bytes, context: Any) -> bytes:
        return request + request[: limits.RECEIVED_BYTES_MAX - len(request)]

    async with _serving(unary=more) as (channel, _):
        reply = await _whole(channel, request)

    assert len(reply) == limits.RECEIVED_BYTES_MAX
    assert reply[: len(request)] == request


async def test_hundreds_of_calls_share_one_connection() -> None:
    async with _serving() as (channel, _), anyio.create_task_group() as group:

        async def one(number: int) -> None:
            text = b"call %d" % number
            assert b"".join(await _all(channel, text)) == text
            assert await _whole(channel, text * 1000) == (text * 1000)[::-1]

        for number in range(300):
            group.start_soon(one, number)

    assert len(channel._connections) == 1


async def test_a_server_that_takes_few_calls_gets_several_connections_but_not_any_number() -> None:
    calls, done = Open(), anyio.Event()

    async def hold(request: bytes, context: Any) -> bytes:
        with calls.counted():
            await done.wait()
        return request

    most = 3 * limits.CONNECTIONS_MAX
    async with _serving(unary=hold, max_concurrent_streams=3) as (channel, _):
        async with anyio.create_task_group() as group:
            for _ in range(most):
                group.start_soon(_whole, channel)
            await wait_until(lambda: calls.now == most, what="all calls at once")
            with pytest.raises(CallFailed) as failed:
                await _whole(channel)
            done.set()
        again = await _whole(channel)

    assert (failed.value.code, again) == (GrpcStatus.RESOURCE_EXHAUSTED, b"ask")


async def test_the_server_sees_at_once_that_a_call_was_given_up() -> None:
    calls = Open()

    async def endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
        with calls.counted():
            yield b"one"
            await anyio.sleep_forever()

    async with _serving(stream=endless) as (channel, _):
        with GrpcCall(await channel.call("PredictStream", b""), PATIENCE_S) as exchange:
            assert await exchange.read() == b"one"
        await wait_until(lambda: not calls.now, within=1.0, what="the call's end at the server")


async def test_a_reader_that_does_not_read_stops_the_server() -> None:
    written = 0
    piece = bytes(10_000)

    async def torrent(request: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal written
        for _ in range(2000):
            yield piece
            written += 1

    async with _serving(stream=torrent) as (channel, _):
        with GrpcCall(await channel.call("PredictStream", b""), PATIENCE_S) as exchange:
            assert await exchange.read() == piece
            assert await _whole(channel, b"another call goes on") == b"no seog llac rehtona"
            before = written
            count = 1
            while await exchange.read() is not None:
                count += 1

    assert before * len(piece) < 1 << 20
    assert count == 2000


async def test_a_server_that_comes_back_is_called_again() -> None:
    async with _serving() as (_, port):
        channel = Channel(f"127.0.0.1:{port}")
        before = await _whole(channel)
    async with _serving(port=port):
        after = await _whole(channel)
        channel.close()

    assert before == after == b"ksa"


async def test_thousands_of_calls_given_up_at_any_moment_leave_nothing() -> None:
    calls, dice = Open(), SeededEntropy(11)

    async def chatter(request: bytes, context: Any) -> AsyncIterator[bytes]:
        with calls.counted():
            for _ in range(4):
                yield b"word"

    async def some_of_it(channel: Channel) -> None:
        with (
            anyio.move_on_after(0.05 * dice.fraction() if dice.fraction() < 0.3 else PATIENCE_S),
            GrpcCall(await channel.call("PredictStream", bytes(500)), PATIENCE_S) as exchange,
        ):
            for _ in range(int(6 * dice.fraction())):
                await exchange.read()

    async with _serving(stream=chatter) as (channel, _):
        for _ in range(60):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(some_of_it, channel)
        (connection,) = channel._connections
        await wait_until(lambda: not calls.now, what="the end of all calls")
        assert (connection.open_calls, len(connection._sending)) == (0, 0)

    assert calls.ever > 1000


async def test_closing_a_channel_ends_its_calls() -> None:
    async def endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await anyio.sleep_forever()

    async with _serving(stream=endless) as (channel, _):
        stream = await channel.call("PredictStream", b"")
        assert await stream.read() == b"one"
        channel.close()
        with pytest.raises(HungUp):
            await stream.read()


def test_what_grpc_has_left_for_a_closed_loop_fails_no_later_test(
    anyio_backend: tuple[str, dict[str, Any]],
) -> None:
    """Of the event loops that tests have, for gRPC has one poller for the whole process."""
    failures: list[object] = []
    new_loop = anyio_backend[1]["loop_factory"]
    earlier, later = new_loop(), new_loop()
    later.set_exception_handler(lambda _, context: failures.append(context))
    calls = Open()

    async def hold(request: bytes, context: Any) -> bytes:
        with calls.counted():
            await anyio.sleep_forever()
        return b""

    async def serve() -> tuple[Any, int]:
        server = grpc.aio.server()
        handlers = {"Predict": grpc.unary_unary_rpc_method_handler(hold)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def call(port: int) -> tuple[Any, Any]:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return channel, channel.unary_unary(f"/{SERVICE}/Predict")(b"")

    async def end(server: Any) -> None:
        await wait_until(lambda: calls.now == 1, what="the call")
        await server.stop(None)
        async with _serving() as (channel, _):
            assert await _whole(channel) == b"ksa"

    server, port = later.run_until_complete(serve())
    left = earlier.run_until_complete(call(port))
    earlier.close()
    later.run_until_complete(end(server))
    later.close()
    assert left
    assert failures == []
