"""Frames, as another implementation builds and reads them."""

from typing import Any

import pytest
from hyperframe import frame as hyper
from hypothesis import given
from hypothesis import strategies as st

from remuda.upstreams.http2 import frames
from remuda.upstreams.http2.frames import Code, Frame, FrameType, Splitter, Violation

_FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, frames.STREAM_ID_MAX),
        st.binary(max_size=300),
    )
)


def _bytes_of(one: Frame) -> bytes:
    kind, flags, stream_id, payload = one
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def _parsed(data: bytes) -> Any:
    frame, length = hyper.Frame.parse_frame_header(memoryview(data)[:9])
    assert length == len(data) - 9
    frame.parse_body(memoryview(data)[9:])
    return frame


@given(_FRAMES, st.lists(st.integers(1, 50)))
def test_frames_are_found_wherever_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    splitter, data = Splitter(), b"".join(map(_bytes_of, sent))
    found: list[Frame] = []

    for size in [*cuts, len(data)]:
        found += splitter.feed(data[:size])
        data = data[size:]

    assert found == sent


def test_frame_that_is_too_large_is_refused_by_its_head() -> None:
    splitter = Splitter()

    with pytest.raises(Violation) as raised:
        list(splitter.feed(frames.head(FrameType.DATA, 0, 1, frames.PAYLOAD_BYTES_MAX + 1)))

    assert raised.value.code is Code.FRAME_SIZE_ERROR


def test_frames_before_a_bad_one_are_found() -> None:
    found = Splitter().feed(frames.SETTINGS_ACK + b"\xff" * 9)

    assert next(found) == (FrameType.SETTINGS, frames.ACK, 0, b"")
    with pytest.raises(Violation):
        next(found)


@pytest.mark.parametrize("size", [0, 10, 16_384, 16_385, 50_000])
def test_headers_take_as_many_frames_as_they_need(size: int) -> None:
    block = bytes(index % 251 for index in range(size))

    kinds, flags, streams, pieces = zip(
        *Splitter().feed(frames.headers(5, block, frames.PAYLOAD_BYTES_MAX)), strict=True
    )

    assert b"".join(pieces) == block
    assert kinds == (FrameType.HEADERS, *[FrameType.CONTINUATION] * (len(kinds) - 1))
    assert flags == (*[0] * (len(flags) - 1), frames.END_HEADERS)
    assert set(streams) == {5}


def test_what_is_built_is_read_by_others() -> None:
    reset, window = _parsed(frames.rst_stream(7, Code.CANCEL)), _parsed(frames.window_update(7, 99))
    pong, goaway = _parsed(frames.pong(b"12345678")), _parsed(frames.goaway(Code.PROTOCOL_ERROR))
    settings = _parsed(frames.settings({frames.SettingsParameter.ENABLE_PUSH: 0}))

    assert (reset.stream_id, reset.error_code) == (7, 8)
    assert (window.stream_id, window.window_increment) == (7, 99)
    assert (pong.opaque_data, set(pong.flags)) == (b"12345678", {"ACK"})
    assert (goaway.last_stream_id, goaway.error_code) == (0, 1)
    assert settings.settings == {2: 0}


@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding_is_taken_off(data: bytes, pad_bytes: int) -> None:
    padded = hyper.DataFrame(1, data, flags=("PADDED",), pad_length=pad_bytes)
    padded_headers = hyper.HeadersFrame(1, data, flags=("PADDED", "PRIORITY"), pad_length=pad_bytes)

    (one, other) = Splitter().feed(padded.serialize() + padded_headers.serialize())

    assert frames.data_of(one[1], one[3]) == data
    assert frames.fragment_of(other[1], other[3]) == data


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd"])
def test_more_padding_than_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(Violation):
        frames.data_of(frames.PADDED, payload)
