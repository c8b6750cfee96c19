"""One connection and the calls over it: what a server may do, and what it may not."""

import errno

import anyio
import pytest
from hyperframe import frame as hyper

from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import (
    BackendTurnedAway,
    BrokenOff,
    CallFailed,
    Garbled,
    GrpcStatus,
    HungUp,
    ReplyTooLarge,
    Unprocessed,
    Vanished,
)
from remuda.upstreams.http2.frames import Code
from remuda.upstreams.http2.stream import Http2Stream
from tests.unit.upstreams.http2_peer import OK, Peer, data_in, message_in, next_of, rest_of

pytestmark = pytest.mark.anyio


async def _failure(stream: Http2Stream) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        await rest_of(stream)
    return failed.value


async def test_we_introduce_ourselves_and_acknowledge_the_servers_introduction() -> None:
    settings, window, acknowledged = Peer().heard()

    assert settings.settings == {1: 0, 2: 0, 6: limits.HEADERS_BYTES_MAX}
    assert (window.stream_id, window.window_increment) == (0, 2**31 - 1 - 65_535)
    assert set(acknowledged.flags) == {"ACK"}


async def test_a_call_is_asked_and_answered() -> None:
    peer = Peer()
    peer.heard()

    stream = peer.call(b"ask")
    headers, data = peer.heard()
    peer.says(*peer.answer(stream, b"one", b"", b"three"))

    assert (headers.stream_id, set(headers.flags)) == (1, {"END_HEADERS"})
    assert (data.stream_id, data.data, set(data.flags)) == (1, b"\0\0\0\0\3ask", {"END_STREAM"})
    assert await rest_of(stream) == [b"one", b"", b"three"]
    assert (peer.connection.open_calls, peer.heard()) == (0, [])


async def test_calls_side_by_side_are_told_apart() -> None:
    peer = Peer()
    streams = [peer.call() for _ in range(5)]

    peer.says(*(peer.begins(stream) for stream in streams))
    peer.says(*(message_in(stream, b"%d" % stream.id) for stream in reversed(streams)))
    peer.says(*(peer.ends(stream) for stream in streams))

    assert [await rest_of(stream) for stream in streams] == [[b"1"], [b"3"], [b"5"], [b"7"], [b"9"]]


async def test_an_answer_is_understood_wherever_it_is_cut() -> None:
    peer = Peer()
    streams = [peer.call() for _ in range(2)]
    frames = [frame for stream in streams for frame in peer.answer(stream, b"one", b"two")]

    for byte in b"".join(frame.serialize() for frame in frames):
        peer.sends(bytes((byte,)))

    assert [await rest_of(stream) for stream in streams] == [[b"one", b"two"]] * 2


async def test_what_has_come_is_read_without_waiting_and_what_has_not_is_waited_for() -> None:
    peer = Peer()
    stream = peer.call()
    peer.says(peer.begins(stream), message_in(stream, b"one"))

    assert await next_of(stream) == b"one"
    async with anyio.create_task_group() as group:
        group.start_soon(_say_later, peer, message_in(stream, b"two"))
        assert await next_of(stream) == b"two"


async def test_messages_come_before_the_failure_that_followed_them() -> None:
    peer = Peer()
    stream = peer.call()

    peer.says(peer.begins(stream), message_in(stream, b"one"))
    peer.connection.connection_lost(ConnectionResetError())

    assert await next_of(stream) == b"one"
    assert isinstance(await _failure(stream), BrokenOff)


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH])
async def test_machine_that_acknowledges_nothing_is_told_from_a_process_that_died(number: int) -> None:
    peer = Peer()
    stream = peer.call()
    peer.connection.connection_lost(OSError(number, "as the system says"))

    assert isinstance(await _failure(stream), Vanished)


async def test_padding_priorities_and_continued_headers_are_understood() -> None:
    peer = Peer()
    stream = peer.call()
    whole = peer.headers(stream, OK).data
    first = hyper.HeadersFrame(stream.id, whole[:3], flags=("PADDED", "PRIORITY"), pad_length=7)

    peer.says(
        first,
        hyper.ContinuationFrame(stream.id, whole[3:5]),
        hyper.ContinuationFrame(stream.id, whole[5:], flags=("END_HEADERS",)),
        data_in(stream, b"\0\0\0\0\3o", "PADDED", pad_bytes=9),
        hyper.PriorityFrame(stream.id, depends_on=0, stream_weight=3),
        data_in(stream, b"ne", "PADDED", pad_bytes=0),
        peer.ends(stream),
    )

    assert await rest_of(stream) == [b"one"]


async def test_unknown_frames_and_settings_and_informational_headers_are_passed_over() -> None:
    peer = Peer()
    stream = peer.call()

    peer.sends(b"\0\0\1\xbe\1\0\0\0\1?")
    peer.says(
        hyper.SettingsFrame(0, settings={0xBEEF: 1}),
        peer.headers(stream, [(":status", "103"), ("link", "</style>")]),
        *peer.answer(stream, b"one"),
    )

    assert await rest_of(stream) == [b"one"]


async def test_a_ping_is_answered() -> None:
    peer = Peer()
    peer.heard()

    peer.says(hyper.PingFrame(0, b"12345678"), hyper.PingFrame(0, b"87654321", flags=("ACK",)))

    (pong,) = peer.heard()
    assert (pong.opaque_data, set(pong.flags)) == (b"12345678", {"ACK"})


async def test_status_and_words_reach_the_reader() -> None:
    peer = Peer()
    stream, other = peer.call(), peer.call()

    peer.says(peer.begins(stream), peer.ends(stream, ("grpc-status", "5"), ("grpc-message", "no%20such")))
    peer.says(peer.headers(other, (*OK, ("grpc-status", "16")), "END_STREAM"))

    failed, at_once = await _failure(stream), await _failure(other)
    assert (failed.code, failed.details) == (GrpcStatus.NOT_FOUND, "no such")
    assert at_once.code is GrpcStatus.UNAUTHENTICATED


async def test_a_reset_carries_its_code_and_ends_one_call_only() -> None:
    peer = Peer()
    stream, other = peer.call(), peer.call()

    peer.says(hyper.RstStreamFrame(stream.id, error_code=Code.ENHANCE_YOUR_CALM), *peer.answer(other, b"one"))

    assert (await _failure(stream)).code is GrpcStatus.RESOURCE_EXHAUSTED
    assert await rest_of(other) == [b"one"]


async def test_giving_up_tells_the_server_at_once_and_what_still_comes_is_nothing() -> None:
    peer = Peer()
    stream = peer.call()
    peer.heard()

    stream.give_up(HungUp())
    (reset,) = peer.heard()
    peer.says(
        *peer.answer(stream, b"late"), hyper.RstStreamFrame(stream.id), hyper.WindowUpdateFrame(stream.id, 5)
    )
    stream.give_up(HungUp())

    assert (reset.stream_id, reset.error_code) == (stream.id, Code.CANCEL)
    assert (peer.heard(), peer.connection.open_calls, peer.wire.ended) == ([], 0, "")
    assert isinstance(await _failure(stream), HungUp)


async def test_a_call_that_is_over_is_not_reset() -> None:
    peer = Peer()
    stream = peer.call()
    peer.says(*peer.answer(stream))
    peer.heard()

    stream.give_up(HungUp())

    assert peer.heard() == []


async def test_a_farewell_ends_what_was_not_begun_and_lets_the_rest_finish() -> None:
    peer = Peer()
    first, second = peer.call(), peer.call()

    peer.says(hyper.GoAwayFrame(0, last_stream_id=first.id))
    has_room, ended = peer.connection.has_room, peer.wire.ended
    peer.says(*peer.answer(first, b"one"))

    assert (has_room, ended) == (False, "")
    assert isinstance(await _failure(second), Unprocessed)
    assert await rest_of(first) == [b"one"]
    assert (peer.wire.ended, peer.connection.closed) == ("closed", True)


async def test_a_server_takes_as_many_calls_as_it_says() -> None:
    peer = Peer(max_concurrent_streams=2)

    first, _ = peer.call(), peer.call()
    full = peer.connection.has_room
    peer.says(*peer.answer(first))

    assert (full, peer.connection.has_room) == (False, True)


async def test_a_connection_that_has_used_up_its_numbers_takes_no_more_calls() -> None:
    peer = Peer()
    peer.connection._next_id = 2**31 - 1

    last = peer.call()
    peer.says(*peer.answer(last, b"one"))

    assert (last.id, peer.connection.has_room) == (2**31 - 1, False)
    assert await rest_of(last) == [b"one"]


async def test_closing_ends_the_calls_and_says_goodbye() -> None:
    peer = Peer()
    stream = peer.call()
    peer.heard()

    peer.connection.close()

    assert isinstance(await _failure(stream), HungUp)
    assert [type(frame) for frame in peer.heard()] == [hyper.GoAwayFrame]
    assert (peer.wire.ended, peer.connection.closed, peer.connection.has_room) == ("closed", True, False)


async def test_a_connection_that_is_lost_before_the_introduction_turned_us_away() -> None:
    peer = Peer(greeting=())

    peer.connection.connection_lost(None)

    with pytest.raises(BackendTurnedAway):
        await peer.connection.introduced()


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\xff" * 200,
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        hyper.PingFrame(0, b"12345678").serialize(),
        hyper.SettingsFrame(0, flags=("ACK",)).serialize(),
    ],
    ids=["http/1.1", "noise", "ssh", "another frame", "an acknowledgement"],
)
async def test_what_is_no_introduction_cannot_be_understood(greeting: bytes) -> None:
    peer = Peer(greeting=())

    peer.sends(greeting)

    with pytest.raises(Garbled):
        await peer.connection.introduced()
    assert peer.wire.ended


def _violations() -> dict[str, bytes]:
    headers = hyper.HeadersFrame(1, b"\x88")
    return {
        "noise": b"\xff" * 50,
        "an answer to nothing": hyper.DataFrame(9, b"x").serialize(),
        "a stream of its own": hyper.HeadersFrame(2, b"\x88", flags=("END_HEADERS",)).serialize(),
        "a promise": hyper.PushPromiseFrame(1, promised_stream_id=2, data=b"\x88").serialize(),
        "headers left open": headers.serialize() + hyper.PingFrame(0, b"12345678").serialize(),
        "headers of two": headers.serialize() + hyper.ContinuationFrame(3, b"").serialize(),
        "continued from nothing": hyper.ContinuationFrame(1, b"").serialize(),
        "no headers": hyper.HeadersFrame(1, b"\xff\xff\xff\xff", flags=("END_HEADERS",)).serialize(),
        "endless headers": headers.serialize() + hyper.ContinuationFrame(1, bytes(16_000)).serialize() * 5,
        "a window too wide": hyper.WindowUpdateFrame(0, 2**31 - 1).serialize(),
        "a window of nothing": b"\0\0\4\x08\0\0\0\0\0\0\0\0\0",
        "initial windows too wide": b"\0\0\6\4\0\0\0\0\0\0\4\x80\0\0\0",
        "frames too small": b"\0\0\6\4\0\0\0\0\0\0\5\0\0\0\1",
        "half a setting": b"\0\0\5\4\0\0\0\0\0\0\5\0\0\0",
        "half a ping": b"\0\0\4\6\0\0\0\0\0ping",
        "half a reset": b"\0\0\2\3\0\0\0\0\1\0\0",
        "half a farewell": b"\0\0\4\7\0\0\0\0\0\0\0\0\0",
        "a ping of one call": b"\0\0\x08\6\0\0\0\0\1pingpong",
        "settings of one call": b"\0\0\0\4\0\0\0\0\1",
        "no priority": b"\0\0\1\1\x24\0\0\0\1\x88",
        "all padding": b"\0\0\1\0\x08\0\0\0\1\1",
    }


@pytest.mark.parametrize("name", _violations())
async def test_what_is_no_http2_ends_the_connection_and_all_its_calls(name: str) -> None:
    peer = Peer()
    streams = [peer.call(), peer.call()]
    peer.heard()

    peer.sends(_violations()[name])

    assert [type(await _failure(stream)) for stream in streams] == [Garbled, Garbled]
    assert (peer.connection.open_calls, peer.connection.has_room, peer.wire.ended) == (0, False, "closed")
    assert isinstance(peer.heard()[-1], hyper.GoAwayFrame)


async def test_what_comes_after_the_end_of_the_connection_is_nothing() -> None:
    peer = Peer()
    stream = peer.call()

    peer.sends(b"\xff" * 50)
    peer.says(*peer.answer(stream, b"late"), hyper.PingFrame(0, b"12345678"))
    peer.sends(b"\xff" * 50)
    peer.connection.connection_lost(None)

    assert isinstance(await _failure(stream), Garbled)


async def test_a_server_that_asks_and_never_reads_is_left() -> None:
    peer = Peer()
    peer.wire.waiting_bytes = limits.UNREAD_BYTES_MAX + 1

    peer.says(hyper.PingFrame(0, b"12345678"))

    assert peer.wire.ended == "closed"


def _nonsense(peer: Peer, stream: Http2Stream) -> dict[str, list[hyper.Frame]]:
    begun = peer.begins(stream)
    return {
        "a body before headers": [message_in(stream, b"x")],
        "headers in the middle": [begun, peer.headers(stream, OK)],
        "a compressed message": [begun, data_in(stream, b"\1\0\0\0\1x")],
        "half a message": [begun, data_in(stream, b"\0\0\0\0\5x"), peer.ends(stream)],
        "a page": [peer.headers(stream, [(":status", "200"), ("content-type", "text/html")])],
        "a window of nothing": [_still_window(stream)],
    }


@pytest.mark.parametrize(
    "name",
    [
        "a body before headers",
        "headers in the middle",
        "a compressed message",
        "half a message",
        "a page",
        "a window of nothing",
    ],
)
async def test_an_answer_that_makes_no_sense_fails_alone(name: str) -> None:
    peer = Peer()
    stream, other = peer.call(), peer.call()

    peer.says(*_nonsense(peer, stream)[name], *peer.answer(other, b"one"))

    assert isinstance(await _failure(stream), Garbled)
    assert await rest_of(other) == [b"one"]


@pytest.mark.parametrize("last", [True, False])
async def test_http_errors_fail_the_call(last: bool) -> None:
    peer = Peer()
    stream = peer.call()

    peer.says(peer.headers(stream, [(":status", "503")], *(["END_STREAM"] if last else [])))

    failed = await _failure(stream)
    assert (failed.code, failed.details) == (GrpcStatus.UNAVAILABLE, "it answered with HTTP status 503")
    assert peer.connection.open_calls == 0


async def test_an_answer_that_ends_without_a_status_broke_off() -> None:
    peer = Peer()
    stream = peer.call()

    peer.says(peer.begins(stream), message_in(stream, b"one"), data_in(stream, b"", "END_STREAM"))

    assert await next_of(stream) == b"one"
    assert isinstance(await _failure(stream), BrokenOff)


async def test_a_message_that_is_too_large_is_refused_before_it_comes() -> None:
    peer = Peer()
    stream = peer.call()
    peer.heard()

    size = limits.RECEIVED_BYTES_MAX + 1
    peer.says(peer.begins(stream), data_in(stream, b"\0" + size.to_bytes(4, "big")))

    assert isinstance(await _failure(stream), ReplyTooLarge)
    assert [frame.error_code for frame in peer.heard()] == [Code.CANCEL]


async def test_a_server_that_still_uses_its_table_is_understood() -> None:
    peer = Peer()
    peer._encoder.header_table_size = 4096
    streams = [peer.call() for _ in range(4)]

    for index, stream in enumerate(streams):
        peer.says(
            peer.begins(stream), peer.ends(stream, ("grpc-status", "2"), ("grpc-message", str(index % 2)))
        )

    assert [(await _failure(stream)).details for stream in streams] == ["0", "1", "0", "1"]


async def _say_later(peer: Peer, *frames: hyper.Frame) -> None:
    peer.says(*frames)


def _still_window(stream: Http2Stream) -> hyper.Frame:
    frame = hyper.WindowUpdateFrame(stream.id, 1)
    frame.window_increment = 0
    return frame
