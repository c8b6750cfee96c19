"""Items made in another thread: the same ones, in order, failures and early ends included."""

import threading
from collections.abc import Iterator

import pytest

from remuda.oci.layer_stream import read_ahead

AHEAD = 3


def makers() -> int:
    return sum(thread.name == "read-ahead" for thread in threading.enumerate())


def test_items_come_in_their_order() -> None:
    assert list(read_ahead(iter(range(1000)), AHEAD)) == list(range(1000))


def test_no_more_are_made_ahead_than_allowed() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    for used, _ in enumerate(read_ahead(items(), AHEAD), 1):
        assert len(made) <= used + AHEAD


def test_a_failure_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    ahead = read_ahead(items(), AHEAD)

    assert next(ahead) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_whoever_stops_early_leaves_no_thread_behind() -> None:
    endless = read_ahead(iter(int, 1), AHEAD)
    assert next(endless) == 0

    endless.close()

    assert makers() == 0
