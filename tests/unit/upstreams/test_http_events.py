"""Streams of events on their way through."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.upstreams.http.events import LINE_HELD_BYTES_MAX, Events, usage_in
from remuda.upstreams.http.model_renaming import Renamer

_CHUNK = b'data: {"choices":[]}\n\n'
_DONE = b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 90), max_size=5).map(sorted))
def test_a_stream_passes_unchanged_however_it_is_cut(cuts: list[int]) -> None:
    stream = _CHUNK * 3 + _DONE
    events, edges = Events(Renamer(b'"m"', by_line=True)), [0, *cuts, len(stream)]

    passed = b"".join(events.feed(stream[a:b]) for a, b in pairwise(edges))

    assert passed + events.rest() == stream
    assert (events.chunks, events.ended) == (3, True)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (_DONE, True),
        (b"data: [DONE]", True),
        (b"data:[DONE]\r\n\r\n", True),
        (_CHUNK, False),
        (b'data: {"a":"data: [DONE]', False),
        (b"", False),
    ],
)
def test_only_its_own_last_word_ends_a_stream(last: bytes, ended: bool) -> None:
    events = Events(Renamer(b'"m"', by_line=True))
    events.feed(_CHUNK)
    events.feed(last)

    assert events.ended is ended


def test_a_line_that_is_broken_off_is_not_passed_on() -> None:
    events = Events(Renamer(b'"m"', by_line=True))

    assert events.feed(_CHUNK + b'data: {"cho') == _CHUNK
    assert events.breaking_off() == b""


def test_an_event_without_its_empty_line_is_completed_before_anything_follows() -> None:
    events = Events(Renamer(b'"m"', by_line=True))

    assert events.feed(b'data: {"a":1}\ndata: {"b') == b'data: {"a":1}\n'
    assert events.breaking_off() == b"\n"


def test_a_line_that_does_not_end_passes_in_parts() -> None:
    events = Events(Renamer(b'"m"', by_line=True))
    piece = b"x" * LINE_HELD_BYTES_MAX

    passed = sum(len(events.feed(piece)) for _ in range(160))

    assert passed >= 159 * LINE_HELD_BYTES_MAX
    assert events.breaking_off() == b"\n\n"


def test_usage_is_the_last_one_told() -> None:
    text = b'"usage":{"prompt_tokens": 1} "usage":{"prompt_tokens":7,"completion_tokens" : 9,"x":{"y":1}}'

    assert usage_in(text) == (7, 9)
    assert usage_in(b'{"usage":{"prompt_tokens":7}}') == (7, 0)
    assert usage_in(b'{"usage":null,"text":"\\"prompt_tokens\\":7"}') is None
