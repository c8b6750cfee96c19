"""A line that breaks: where it is taken up again, how long is waited, and when it is given up."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from remuda.cli.following import EventStream, Lost, StreamTimeouts
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import FrontendUnreachable, NotFound, RemudaError
from remuda.core.sse import SseEvent
from tests.support.clocks import HandClock

Said = bytes | RemudaError | float
DOWN = FrontendUnreachable("nothing listens there")


class Script:
    """A frontend that says what it is told to, call by call: bytes, seconds of silence, or an error."""

    def __init__(self, *calls: list[Said]) -> None:
        self.clock = HandClock()
        self.calls = list(calls)
        self.asked: list[str] = []
        self.stays: list[float] = []
        self.pauses: list[float] = []
        self.stream = EventStream(self.open_after, self.clock, SeededEntropy(1), self.pause)

    @contextmanager
    def open_after(self, place: str, stay_s: float) -> Iterator[Iterator[bytes]]:
        self.asked.append(place)
        self.stays.append(stay_s)
        yield self._say(self.calls.pop(0) if self.calls else [DOWN])

    def _say(self, call: list[Said]) -> Iterator[bytes]:
        for said in call:
            if isinstance(said, RemudaError):
                raise said
            if isinstance(said, float):
                self.clock.passed_s += said
            else:
                yield said

    def pause(self, span_s: float) -> None:
        self.pauses.append(span_s)
        self.clock.passed_s += span_s

    def told(self, patience: StreamTimeouts) -> list[SseEvent | Lost]:
        return list(self.stream.follow(patience))


def event(id: int) -> bytes:
    return b"id: %d\ndata: x\n\n" % id


def within(script: Script, seconds: float) -> StreamTimeouts:
    return StreamTimeouts(script.clock.passed_s + seconds)


def test_a_broken_stream_continues_after_the_last_event_seen() -> None:
    script = Script([event(1), event(2), DOWN], [DOWN], [event(3), 60.0])

    told = script.told(within(script, 50))

    assert [one.id for one in told if isinstance(one, SseEvent)] == ["1", "2", "3"]
    assert script.asked == ["", "2", "2"]


def test_an_event_that_was_cut_in_the_middle_is_not_mixed_with_what_follows() -> None:
    script = Script([event(1), b"data: half"], [b"\n\n", event(2), 60.0])

    told = script.told(within(script, 50))

    assert [one.data for one in told if isinstance(one, SseEvent)] == ["x", "x"]


def test_waits_grow_to_a_bound_and_begin_anew_after_a_word() -> None:
    down: list[Said] = [DOWN]
    script = Script(*[down] * 8, [event(1), DOWN], [DOWN], [600.0])

    script.told(within(script, 500))

    assert script.pauses[0] <= 0.25
    assert 5 <= max(script.pauses) <= 10
    assert script.pauses[8] <= 0.25


def test_a_frontend_that_stays_away_is_given_up() -> None:
    script = Script()

    with pytest.raises(FrontendUnreachable, match="nothing listens"):
        script.told(StreamTimeouts(give_up_after=timedelta(minutes=5)))

    assert 300 <= script.clock.passed_s <= 320


def test_a_long_quiet_line_that_breaks_is_not_given_up_at_once() -> None:
    script = Script([event(1), 3000.0, b": nothing new\n\n", DOWN], [DOWN], [event(2)], [NotFound("enough")])

    with pytest.raises(NotFound):
        script.told(StreamTimeouts())

    assert script.asked[-1] == "2"


def test_what_waiting_does_not_cure_is_raised_at_once() -> None:
    script = Script([NotFound("there is no operation x")])

    with pytest.raises(NotFound):
        script.told(StreamTimeouts())

    assert script.pauses == []


def test_it_ends_in_time_whatever_the_frontend_does() -> None:
    script = Script()

    told = script.told(within(script, 3))

    assert script.clock.passed_s == pytest.approx(3)
    assert all(isinstance(one, Lost) for one in told)
    assert max(script.stays) <= 3
