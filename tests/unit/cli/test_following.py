"""A followed log goes on after a gap, and shows no line twice."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from remuda.cli.following import CAUGHT_UP, Shown, followed
from remuda.core.errors import FrontendUnreachable, NotFound, RemudaError
from remuda.wire.codec import encode
from remuda.wire.logs import LogEnd, LogLine


def line(second: int, text: str = "", **facts: object) -> LogLine:
    told = {"timestamp": f"2026-01-31T12:00:{second:02}Z", "stream": "stdout", **facts}
    return LogLine.model_validate({**told, "text": text or f"line {second}"})


def event(told: LogLine) -> bytes:
    return b"event: line\ndata: " + encode(told) + b"\n\n"


class Frontend:
    """Answers each connection with what is next: lines, and then an end of the connection."""

    def __init__(self, *connections: list[LogLine] | RemudaError) -> None:
        self._connections = list(connections)
        self.tails: list[int] = []
        self.told: list[str] = []
        self.pauses: list[float] = []

    @contextmanager
    def open(self, tail: int) -> Iterator[Iterator[bytes]]:
        self.tails.append(tail)
        if not self._connections:
            raise NotFound("the node was removed")
        following = self._connections.pop(0)
        if isinstance(following, RemudaError):
            raise following
        yield iter([event(one) for one in following])

    def shown(self, tail: int = 10) -> list[str]:
        texts: list[str] = []
        with suppress(NotFound):
            for one in followed(self.open, tail, self.told.append, self.pauses.append):
                texts.append(one.text)
        return texts


def test_lines_that_come_again_after_a_gap_are_shown_once_and_missed_ones_are_shown() -> None:
    frontend = Frontend([line(1), line(2), line(2)], [line(0), line(1), line(2), line(2), line(2), line(3)])
    assert frontend.shown() == ["line 1", "line 2", "line 2", "line 2", "line 3"]
    assert frontend.tails[:2] == [10, CAUGHT_UP]


def test_the_gap_is_told_once_however_long_it_lasts() -> None:
    away = FrontendUnreachable("nothing listens there")
    frontend = Frontend([line(1)], away, away, away, [line(1), line(2)])
    assert frontend.shown() == ["line 1", "line 2"]
    assert frontend.told[:2] == ["the connection was closed; connecting again", "connected again"]
    assert frontend.pauses[:4] == [1, 2, 4, 8]


def test_lines_whose_time_is_not_known_are_known_by_their_words() -> None:
    old = [line(9, text, approximate=True) for text in ("a", "b", "b")]
    frontend = Frontend([line(1, "a"), line(2, "b")], [*old, line(10, "c")])
    assert frontend.shown() == ["a", "b", "b", "c"]


def test_a_log_of_which_nothing_was_wanted_begins_where_it_is() -> None:
    frontend = Frontend([], [line(1)])
    assert frontend.shown(tail=0) == ["line 1"]
    assert frontend.tails[:2] == [0, 0]


def test_a_first_connection_that_fails_is_not_tried_again() -> None:
    frontend = Frontend(FrontendUnreachable("nothing listens there"))
    with pytest.raises(FrontendUnreachable):
        next(followed(frontend.open, 10, frontend.told.append, frontend.pauses.append))
    assert frontend.pauses == []


def test_the_reason_of_an_end_is_told() -> None:
    @contextmanager
    def ends(tail: int) -> Iterator[Iterator[bytes]]:
        yield iter([b"event: end\ndata: " + encode(LogEnd(message="this frontend stops")) + b"\n\n"])

    class Enough(Exception):
        pass

    told: list[str] = []

    def stop(_: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        next(followed(ends, 10, told.append, stop))
    assert told == ["this frontend stops; connecting again"]


def test_equal_lines_without_a_gap_are_all_shown() -> None:
    shown = Shown()
    assert all(shown.is_new(line(1, "same")) for _ in range(3))
