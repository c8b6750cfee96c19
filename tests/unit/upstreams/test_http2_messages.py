"""Messages in the bodies of answers."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.upstreams.http2.failures import Garbled, ReplyTooLarge
from remuda.upstreams.http2.stream import Messages, prefixed


@given(st.lists(st.binary(max_size=100)), st.lists(st.integers(1, 40)))
def test_messages_are_found_wherever_they_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    messages, found = Messages(100), deque[bytes]()
    data = b"".join(map(prefixed, sent))

    for size in [*cuts, len(data)]:
        messages.feed(data[:size], found)
        data = data[size:]

    assert list(found) == sent
    assert messages.missing_bytes == 0


def test_it_is_known_how_much_is_missing() -> None:
    messages, found = Messages(100), deque[bytes]()

    messages.feed(prefixed(b"whole") + prefixed(b"0123456789")[:8], found)

    assert (list(found), messages.missing_bytes) == ([b"whole"], 7)


def test_message_that_is_too_large_is_refused_by_its_prefix_after_those_before_it() -> None:
    messages, found = Messages(100), deque[bytes]()

    with pytest.raises(ReplyTooLarge):
        messages.feed(prefixed(b"first") + prefixed(bytes(101))[:5], found)

    assert list(found) == [b"first"]


def test_compressed_message_is_refused() -> None:
    with pytest.raises(Garbled):
        Messages(100).feed(b"\x01\x00\x00\x00\x01x", deque())
