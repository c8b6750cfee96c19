"""Calls to servers that are not the gRPC library's: another implementation, and some that misbehave."""

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from h2.settings import SettingCodes
from hyperframe import frame as hyper

from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import (
    BackendTurnedAway,
    CallFailed,
    Garbled,
    HungUp,
    Silence,
    Unprocessed,
    Unreachable,
)
from remuda.upstreams.http2.stream import prefixed
from tests.integration.upstreams.h2_server import echo_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Handler = Callable[[SocketStream], Awaitable[None]]
GREETING = hyper.SettingsFrame(0).serialize()
ANSWER = (
    hyper.SettingsFrame(0, flags=("ACK",)).serialize(),
    hyper.HeadersFrame(1, b"\x88\x5f\x10application/grpc", flags=("END_HEADERS",)).serialize(),
    hyper.DataFrame(1, prefixed(b"one")).serialize(),
    hyper.HeadersFrame(1, b"\x00\x0bgrpc-status\x010", flags=("END_HEADERS", "END_STREAM")).serialize(),
)


async def _whole(channel: Channel, request: bytes = b"ask", silence_s: float = 30.0) -> bytes:
    with GrpcCall(await channel.call("Predict", request), silence_s) as exchange:
        return await exchange.whole()


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[Channel]:
    channel = Channel(address)
    try:
        yield channel
    finally:
        channel.close()


@asynccontextmanager
async def _raw(handle: Handler, port: int = 0) -> AsyncIterator[str]:
    """The address of a server that does just that with each connection, as long as it lasts."""

    async def handle_one(stream: SocketStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await handle(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle_one)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("piece_bytes", "settings"),
    [
        (1 << 16, {}),
        (7, {}),
        (1000, {SettingCodes.INITIAL_WINDOW_SIZE: 1000}),
        (1000, {SettingCodes.HEADER_TABLE_SIZE: 0}),
        (1 << 16, {SettingCodes.MAX_FRAME_SIZE: 1 << 20, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20}),
    ],
    ids=["as usual", "in small pieces", "through a small window", "without a table", "in large frames"],
)
async def test_another_implementation_understands_us_and_is_understood(
    piece_bytes: int, settings: dict[SettingCodes, int]
) -> None:
    async with echo_server(piece_bytes, settings) as (address, server), _channel(address) as channel:
        for size in (0, 1, 100, 70_000):
            request = bytes(index % 251 for index in range(size))
            assert await _whole(channel, request) == request

    assert (server.connections, server.resets) == (1, 0)


async def test_megabytes_go_through_windows_of_some_kilobytes_side_by_side() -> None:
    settings: dict[SettingCodes, int] = {SettingCodes.INITIAL_WINDOW_SIZE: 20_000}
    async with (
        echo_server(settings=settings) as (address, _),
        _channel(address) as channel,
        anyio.create_task_group() as group,
    ):

        async def one(number: int) -> None:
            request = bytes((number,)) * (1 << 20)
            assert await _whole(channel, request) == request

        for number in range(5):
            group.start_soon(one, number)


async def test_a_server_that_takes_one_call_at_a_time_gets_a_connection_for_each() -> None:
    settings: dict[SettingCodes, int] = {SettingCodes.MAX_CONCURRENT_STREAMS: 1}
    async with (
        echo_server(settings=settings) as (address, server),
        _channel(address) as channel,
        anyio.create_task_group() as group,
    ):
        for _ in range(4):
            group.start_soon(_whole, channel, bytes(100_000))

    assert 1 < server.connections <= 4


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_server_may_go_at_any_moment(reset: bool) -> None:
    data, outcomes = GREETING + b"".join(ANSWER), []

    for count in range(len(data) + 1):

        async def cut(stream: SocketStream, count: int = count) -> None:
            await stream.send(data[: min(count, len(GREETING))])
            if count >= len(GREETING):
                await _asked(stream)
                await stream.send(data[len(GREETING) : count])
            if reset:
                linger = struct.pack("ii", 1, 0)
                stream.extra(SocketAttribute.raw_socket).setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            await stream.aclose()

        async with _raw(cut) as address, _channel(address) as channel:
            try:
                outcomes.append((await _whole(channel)).decode())
            except CallFailed as failed:
                outcomes.append(type(failed).__name__)

    begun = len(GREETING)
    assert set(outcomes[:begun]) == {"BackendTurnedAway"}
    assert set(outcomes[begun:-1]) == {"BrokenOff"}
    assert outcomes[-1] == "one" or (reset and outcomes[-1] == "BrokenOff")  # A reset may overtake data.


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", b"\xff" * 200, GREETING + b"\xff" * 200],
    ids=["http/1.1", "noise", "noise after the introduction"],
)
async def test_a_server_of_another_kind_cannot_be_understood(answer: bytes) -> None:
    async def other(stream: SocketStream) -> None:
        async with stream:
            await stream.send(answer)
            async for _ in stream:
                pass

    async with _raw(other) as address, _channel(address) as channel:
        with pytest.raises(Garbled):
            await _whole(channel)


async def test_a_call_after_a_farewell_goes_over_a_new_connection() -> None:
    connections = 0

    async def hasty(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            await _answers(stream)
            return
        async with stream:
            await stream.send(GREETING)
            await _asked(stream)
            await stream.send(hyper.GoAwayFrame(0, last_stream_id=0).serialize())
            async for _ in stream:
                pass

    async with _raw(hasty) as address, _channel(address) as channel:
        with pytest.raises(Unprocessed):
            await _whole(channel)
        assert await _whole(channel) == b"one"

    assert connections == 2


@pytest.mark.parametrize(
    "greeting",
    [
        GREETING + hyper.GoAwayFrame(0, last_stream_id=0).serialize(),
        hyper.SettingsFrame(0, settings={hyper.SettingsFrame.MAX_CONCURRENT_STREAMS: 0}).serialize(),
    ],
    ids=["a farewell", "no calls"],
)
async def test_a_server_that_takes_no_calls_is_not_asked_over_and_over(greeting: bytes) -> None:
    connections = 0

    async def shy(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            await stream.send(greeting)
            async for _ in stream:
                pass

    async with _raw(shy) as address, _channel(address) as channel:
        with anyio.fail_after(limits.CONNECT_S), pytest.raises(Unprocessed):
            await _whole(channel)

    assert connections == 1


async def test_a_channel_closed_while_it_connects_stays_closed() -> None:
    greet = anyio.Event()

    async def slow(stream: SocketStream) -> None:
        await greet.wait()
        await _answers(stream)

    async def hung_up(channel: Channel) -> None:
        with pytest.raises(HungUp):
            await _whole(channel)

    async with _raw(slow) as address, _channel(address) as channel:
        async with anyio.create_task_group() as group:
            group.start_soon(hung_up, channel)
            await wait_until(lambda: channel._attempt is not None, what="an attempt to connect")
            channel.close()
            greet.set()
        assert channel._connections == []


async def test_a_closed_port_says_so_at_once_and_again_and_again() -> None:
    async with _channel(f"127.0.0.1:{_closed_port()}") as channel:
        with anyio.fail_after(limits.CONNECT_S):
            for _ in range(20):
                with pytest.raises(BackendTurnedAway, match="connection refused"):
                    await _whole(channel)


async def test_a_port_that_opens_later_is_reached_then() -> None:
    port = _closed_port()
    async with _channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(BackendTurnedAway):
            await _whole(channel)

        async with _raw(_answers, port):
            assert await _whole(channel) == b"one"


@pytest.mark.parametrize(
    "address", ["nowhere.invalid:1", "127.0.0.1", "", "127.0.0.1:http", "a..b:1", "h:99999"]
)
async def test_an_address_that_is_none_is_unreachable_and_not_named(address: str) -> None:
    async with _channel(address) as channel:
        with pytest.raises(Unreachable) as failed:
            await _whole(channel)

    assert not isinstance(failed.value, BackendTurnedAway)
    assert not address or address not in failed.value.details


@pytest.mark.parametrize(("host", "written"), [("127.0.0.1", "localhost"), ("::1", "[::1]")])
async def test_names_and_both_kinds_of_addresses_are_reached(host: str, written: str) -> None:
    try:
        listener = await anyio.create_tcp_listener(local_host=host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, _greets_only)
        async with _channel(f"{written}:{listener.extra(SocketAttribute.local_port)}") as channel:
            stream = await channel.call("Predict", b"")
            assert channel._connections[0].open_calls == 1
            stream.close()
        group.cancel_scope.cancel()


async def test_all_who_wait_for_a_connection_share_one_attempt_and_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remuda.upstreams.http2.limits.CONNECT_S", 0.3)
    connections, failures = 0, []

    async def silent(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            async for _ in stream:
                pass

    async def ask(channel: Channel) -> None:
        with pytest.raises(Unreachable) as failed:
            await _whole(channel)
        failures.append(failed.value.details)

    async with _raw(silent) as address, _channel(address) as channel:
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(ask, channel)
        await wait_until(lambda: connections, what="a connection that the server has seen")

    assert (connections, failures) == (1, ["it did not answer within 0.3 s"] * 50)


async def test_who_leaves_while_connecting_leaves_it_to_the_next() -> None:
    greet = anyio.Event()

    async def slow(stream: SocketStream) -> None:
        await greet.wait()
        await _answers(stream)

    async with _raw(slow) as address, _channel(address) as channel, anyio.create_task_group() as group:
        first = anyio.CancelScope()

        async def leave() -> None:
            with first:
                await _whole(channel)

        group.start_soon(leave)
        await wait_until(lambda: channel._attempt is not None, what="an attempt to connect")
        begun = channel._attempt

        async def stay() -> None:
            assert await _whole(channel) == b"one"

        group.start_soon(stay)
        await anyio.lowlevel.checkpoint()
        first.cancel()
        await wait_until(lambda: channel._attempt is not begun, what="another attempt")
        greet.set()


async def test_a_server_that_says_nothing_is_left_after_a_while() -> None:
    async with _raw(_greets_only) as address, _channel(address) as channel:
        with pytest.raises(Silence):
            await _whole(channel, silence_s=0.2)
        assert channel._connections[0].open_calls == 0


@pytest.mark.parametrize("body", [b"", prefixed(b"one") * 2], ids=["no message", "two messages"])
async def test_an_answer_that_has_not_one_message_where_one_was_asked_for_cannot_be_understood(
    body: bytes,
) -> None:
    acknowledged, headers, _, trailers = ANSWER

    async def says_so(stream: SocketStream) -> None:
        await _answers(stream, (acknowledged, headers, hyper.DataFrame(1, body).serialize(), trailers))

    async with _raw(says_so) as address, _channel(address) as channel:
        with pytest.raises(Garbled):
            await _whole(channel)


async def _asked(stream: SocketStream) -> None:
    received = b""
    while b"ask" not in received:
        received += await stream.receive()


async def _answers(stream: SocketStream, answer: Sequence[bytes] = ANSWER) -> None:
    async with stream:
        await stream.send(GREETING)
        await _asked(stream)
        await stream.send(b"".join(answer))
        async for _ in stream:
            pass


async def _greets_only(stream: SocketStream) -> None:
    async with stream:
        await stream.send(GREETING)
        async for _ in stream:
            pass
