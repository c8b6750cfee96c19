"""Whatever a server sends: nothing is raised in the event loop, nobody waits forever, nothing is left."""

from collections.abc import Sequence
from contextlib import suppress

import anyio
import pytest
from hyperframe import frame as hyper
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.entropy import SeededEntropy
from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import CallFailed, HungUp
from remuda.upstreams.http2.stream import Http2Stream, prefixed
from tests.support.examples import examples
from tests.unit.upstreams.http2_peer import Peer, data_in, message_in, rest_of

pytestmark = pytest.mark.anyio

_FRAMES = st.builds(
    lambda kind, flags, stream_id, payload: (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload
    ),
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 3, 3, 2, 5, 2**31 - 1]),
    st.one_of(st.binary(max_size=40), st.just(prefixed(b"one")), st.just(bytes(4)), st.just(b"\x88\x5f\x10")),
)


async def _outcome(stream: Http2Stream) -> None:
    """It has one, within a moment."""
    with suppress(CallFailed):
        await rest_of(stream)


async def _left_after(peer: Peer, *streams: Http2Stream) -> int:
    """How many calls are open, once all have been read to their end and the server is gone."""
    async with anyio.create_task_group() as group:
        for stream in streams:
            group.start_soon(_outcome, stream)
        await anyio.lowlevel.checkpoint()
        peer.connection.connection_lost(None)
    return peer.connection.open_calls


@given(st.lists(st.one_of(_FRAMES, st.binary(max_size=30)), max_size=20))
@settings(max_examples=examples(300))
async def test_any_frames_in_any_order(pieces: list[bytes]) -> None:
    peer = Peer()
    streams = [peer.call(), peer.call(bytes(100_000))]

    for piece in pieces:
        peer.sends(piece)

    assert await _left_after(peer, *streams) == 0


@given(st.data())
@settings(max_examples=examples(300))
async def test_a_good_answer_with_some_bytes_changed(data: st.DataObject) -> None:
    peer = Peer()
    streams = [peer.call(), peer.call(bytes(100_000))]
    frames = [frame for stream in streams for frame in peer.answer(stream, b"one", b"two" * 100)]
    answer = bytearray(b"".join(frame.serialize() for frame in frames))

    for _ in range(data.draw(st.integers(1, 5))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(answer)))
    peer.sends(bytes(answer[:cut]))
    peer.sends(bytes(answer[cut:]))

    assert await _left_after(peer, *streams) == 0


@given(st.binary(max_size=200))
async def test_any_introduction(greeting: bytes) -> None:
    peer = Peer(greeting=())

    peer.sends(greeting)
    peer.connection.connection_lost(None)

    with anyio.fail_after(5), suppress(CallFailed):
        await peer.connection.introduced()
    assert peer.connection.closed


async def test_a_server_that_sends_all_it_may_fills_no_more_than_the_windows() -> None:
    peer = Peer()
    streams = [peer.call() for _ in range(20)]

    for stream in streams:
        peer.says(peer.begins(stream))
        for _ in range(limits.WINDOW_BYTES // 1005):
            peer.says(message_in(stream, bytes(1000)))

    assert all(sum(map(len, stream._ready)) <= limits.WINDOW_BYTES for stream in streams)
    assert peer.wire.ended == ""


async def test_thousands_of_calls_with_any_end_leave_nothing() -> None:
    peer, dice = Peer(initial_window_size=50), SeededEntropy(3)
    peer.says(hyper.WindowUpdateFrame(0, 2**30))

    def end(stream: Http2Stream) -> None:
        ways: tuple[Sequence[hyper.Frame], ...] = (
            peer.answer(stream, b"one"),
            [peer.ends(stream, ("grpc-status", "13"))],
            [hyper.RstStreamFrame(stream.id, error_code=8)],
            [data_in(stream, b"no answer has begun")],
            [peer.begins(stream), message_in(stream, b"one")],
            [],
        )
        peer.says(*ways[int(dice.fraction() * len(ways))])
        stream.give_up(HungUp())

    open_streams: list[Http2Stream] = []
    for _ in range(5000):
        open_streams.append(peer.call(bytes(int(dice.fraction() * 100))))
        while open_streams and (dice.fraction() < 0.5 or len(open_streams) > 50):
            end(open_streams.pop(int(dice.fraction() * len(open_streams))))
    for stream in open_streams:
        end(stream)

    connection = peer.connection
    assert (connection.open_calls, len(connection._sending), len(connection._block)) == (0, 0, 0)
    assert len(connection._headers._known) <= limits.BLOCKS_KNOWN_MAX
    assert peer.wire.ended == ""
