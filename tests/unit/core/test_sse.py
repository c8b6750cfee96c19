"""Events out of bytes: what counts as one, and that it does not matter how the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.sse import SseEvent, SseParser, SseTooLarge

PIECES = [b"data: one", b"data:two", b"data", b"event: op", b"id: 7", b"id", b": comment", b"retry: 5", b"x"]
ENDS = [b"\n", b"\r", b"\r\n"]


def parsed(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [SseEvent("message", "a")]),
        (b"event: op\nid: 3\ndata: {}\n\n", [SseEvent("op", "{}", "3")]),
        (b"data: a\r\ndata: b\r\n\r\n", [SseEvent("message", "a\nb")]),
        (b"data: a\r\rdata: b\r\r", [SseEvent("message", "a"), SseEvent("message", "b")]),
        (b"data:a\n\n", [SseEvent("message", "a")]),
        (b"data:  a\n\n", [SseEvent("message", " a")]),
        (b"data\n\n", [SseEvent("message", "")]),
        (b": nothing new\n\n", []),
        (b"event: op\n\ndata: a\n\n", [SseEvent("message", "a")]),
        (b"data: cut short", []),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent("message", "a")]),
        (b"data: \xff\n\n", [SseEvent("message", "\ufffd")]),
        (b"id: a\0b\ndata: x\n\n", [SseEvent("message", "x")]),
    ],
)
def test_a_stream_is_read_as_the_format_says(stream: bytes, events: list[SseEvent]) -> None:
    assert parsed(stream) == events


def test_an_id_holds_for_the_events_after_it() -> None:
    events = parsed(b"id: 3\ndata: a\n\ndata: b\n\nid: 4\ndata: c\n\n")

    assert [event.id for event in events] == ["3", "3", "4"]


@given(
    st.lists(st.tuples(st.sampled_from([*PIECES, b"", b""]), st.sampled_from(ENDS)), max_size=30),
    st.lists(st.integers(0, 400), max_size=30),
)
def test_any_chunking_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    chunks = [stream[begin:end] for begin, end in pairwise(places)]

    assert parsed(*chunks) == parsed(stream)
    assert parsed(*(stream[at : at + 1] for at in range(len(stream)))) == parsed(stream)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_are_too_odd(stream: bytes, size: int) -> None:
    assert parsed(*(stream[at : at + size] for at in range(0, len(stream), size))) == parsed(stream)


def test_an_event_without_end_is_refused() -> None:
    parser = SseParser(event_bytes_max=1 << 20)

    line = b"data: %b\n" % (b"x" * (1 << 19))
    parser.feed(line)

    with pytest.raises(SseTooLarge, match="an event of more than 1 MiB"):
        parser.feed(line)
