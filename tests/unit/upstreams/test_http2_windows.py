"""Who may send how much: windows in both directions."""

import anyio
import pytest
from hyperframe import frame as hyper

from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import CallFailed, Garbled, HungUp
from remuda.upstreams.http2.frames import Code
from remuda.upstreams.http2.stream import Http2Stream, prefixed
from tests.support.waiting import wait_until
from tests.unit.upstreams.http2_peer import Peer, data_in, message_in, next_of, rest_of

pytestmark = pytest.mark.anyio

BIG = b"0123456789abcdef" * 10_000
PIECE = 16_000


def _data(peer: Peer) -> list[hyper.DataFrame]:
    return [frame for frame in peer.heard() if isinstance(frame, hyper.DataFrame)]


def _sizes(peer: Peer) -> list[int]:
    return [len(frame.data) for frame in _data(peer)]


def _widenings(peer: Peer, stream: Http2Stream) -> int:
    """By how much the server's window of that call was widened."""
    frames = [frame for frame in peer.heard() if isinstance(frame, hyper.WindowUpdateFrame)]
    return sum(frame.window_increment for frame in frames if frame.stream_id == stream.id)


async def test_a_request_is_sent_in_frames_as_large_as_the_server_takes_them() -> None:
    peer = Peer(initial_window_size=2**31 - 1)
    peer.says(hyper.WindowUpdateFrame(0, 2**30))

    peer.call(BIG)
    small = _data(peer)
    peer.says(peer.settings(max_frame_size=2**24 - 1))
    peer.call(BIG)
    large = _data(peer)

    assert b"".join(frame.data for frame in small) == b"".join(frame.data for frame in large) == prefixed(BIG)
    assert {len(frame.data) for frame in small[:-1]} == {16_384}
    assert {len(frame.data) for frame in large[:-1]} == {limits.PIECE_BYTES_MAX}
    assert [set(frame.flags) for frame in small] == [set()] * (len(small) - 1) + [{"END_STREAM"}]


async def test_a_request_waits_for_the_window_of_its_call() -> None:
    peer = Peer(initial_window_size=10)
    peer.says(hyper.WindowUpdateFrame(0, 2**30))
    sent = []

    stream = peer.call(b"x" * 20)
    sent.append(_sizes(peer))
    for increment in (1, 5, 100):
        peer.says(hyper.WindowUpdateFrame(stream.id, increment))
        sent.append(_sizes(peer))

    assert sent == [[10], [1], [5], [9]]


async def test_a_request_waits_for_the_window_of_the_connection_and_no_call_takes_all_of_it() -> None:
    peer = Peer(initial_window_size=2**31 - 1)
    first, second = peer.call(BIG), peer.call(BIG)
    before = [frame.stream_id for frame in _data(peer)]

    peer.says(hyper.WindowUpdateFrame(0, 4 * 16_384))

    assert set(before) == {first.id}
    assert sorted(frame.stream_id for frame in _data(peer)) == [first.id, first.id, second.id, second.id]


async def test_windows_change_in_the_middle() -> None:
    peer = Peer(initial_window_size=10)
    stream = peer.call(b"x" * 45)
    sent = [_sizes(peer)]

    for size in (4, 30, 0, 1000):
        peer.says(peer.settings(initial_window_size=size))
        sent.append(_sizes(peer))

    assert sent == [[10], [], [20], [], [20]]
    assert stream.send_window == 950


async def test_a_small_request_that_does_not_fit_waits_as_well() -> None:
    peer = Peer(initial_window_size=0)

    stream = peer.call(b"x")
    before = _sizes(peer)
    peer.says(hyper.WindowUpdateFrame(stream.id, 3), hyper.WindowUpdateFrame(stream.id, 3))

    assert (before, _sizes(peer)) == ([], [3, 3])


async def test_nothing_is_written_to_a_socket_that_is_full() -> None:
    peer = Peer(initial_window_size=2**31 - 1)
    peer.says(hyper.WindowUpdateFrame(0, 2**30))
    peer.connection.pause_writing()

    peer.call(BIG)
    before = _sizes(peer)
    peer.connection.resume_writing()

    assert (before, sum(_sizes(peer))) == ([], len(BIG) + 5)


async def test_a_call_given_up_while_it_is_sent_sends_no_more() -> None:
    peer = Peer()
    stream = peer.call(BIG)
    peer.heard()

    stream.give_up(HungUp())
    peer.says(hyper.WindowUpdateFrame(0, 2**30), hyper.WindowUpdateFrame(stream.id, 2**30))

    assert [type(frame) for frame in peer.heard()] == [hyper.RstStreamFrame]
    assert not peer.connection._sending


async def test_an_answer_before_the_whole_request_ends_it() -> None:
    peer = Peer()
    stream = peer.call(BIG)
    peer.heard()

    peer.says(*peer.answer(stream, b"enough"))

    assert await rest_of(stream) == [b"enough"]
    assert [frame.error_code for frame in peer.heard()] == [Code.NO_ERROR]
    assert not peer.connection._sending


async def test_a_slow_reader_keeps_the_window_shut() -> None:
    peer = Peer()
    stream = peer.call()
    peer.says(peer.begins(stream), *(message_in(stream, b"x" * PIECE) for _ in range(4)))
    peer.heard()

    taken = [await next_of(stream) for _ in range(4)]
    before = _widenings(peer, stream)
    async with anyio.create_task_group() as group:
        group.start_soon(next_of, stream)
        await wait_until(lambda: stream._waiter is not None, what="a reader that waits")
        after = _widenings(peer, stream)
        peer.says(*peer.answer(stream)[-1:])

    assert (len(taken), before, after) == (4, 0, 4 * (PIECE + 5))


async def test_tokens_do_not_widen_windows_one_by_one() -> None:
    peer = Peer()
    stream = peer.call()
    peer.says(peer.begins(stream))
    peer.heard()

    for _ in range(100):
        peer.says(message_in(stream, b"token"))
        await next_of(stream)

    assert peer.heard() == []


async def test_a_message_larger_than_the_window_comes_through() -> None:
    peer, received = Peer(), []
    stream = peer.call()
    peer.says(peer.begins(stream))
    peer.heard()
    body, window = prefixed(BIG * 10), limits.WINDOW_BYTES

    async def read() -> None:
        received.extend(await rest_of(stream))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await wait_until(lambda: stream._waiter is not None, what="a reader that waits")
        while body:
            assert window, "the server waits forever"
            size = min(window, PIECE, len(body))
            peer.says(data_in(stream, body[:size]))
            body, window = body[size:], window - size + _widenings(peer, stream)
        peer.says(peer.ends(stream))

    assert received == [BIG * 10]


async def test_a_server_that_sends_more_than_its_window_is_left() -> None:
    peer = Peer()
    stream = peer.call()
    frames = [message_in(stream, b"x" * PIECE) for _ in range(5)]

    peer.says(peer.begins(stream), *frames)

    with pytest.raises(CallFailed) as failed:
        await rest_of(stream)
    assert isinstance(failed.value, Garbled)


async def test_what_was_given_up_does_not_use_up_the_connection() -> None:
    peer = Peer()
    stream = peer.call()
    stream.give_up(HungUp())
    peer.heard()

    peer.connection._window = 2**30 + 100
    peer.says(data_in(stream, b"x" * 200))

    (widened,) = peer.heard()
    assert (widened.stream_id, peer.connection._window) == (0, 2**31 - 1)
