"""Follows a frontend's events through whatever happens to the connection. It decides nothing about them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import FrontendUnreachable, RemudaError
from remuda.core.retry import Backoff
from remuda.core.sse import SseEvent, SseParser

STAY: Final = timedelta(minutes=50)  # Then a stream is begun anew, before a frontend ends it.
GIVE_UP_AFTER: Final = timedelta(minutes=15)
_BACKOFF: Final = Backoff(timedelta(milliseconds=250), timedelta(seconds=10))

Open = Callable[[str, float], AbstractContextManager[Iterator[bytes]]]
"""Begin a stream after the event with this id, for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The line is down; it is tried again."""

    error: RemudaError
    again_in_s: float


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    until_s: float | None = None  # On the clock that never goes back; None: for as long as it takes.
    give_up_after: timedelta = GIVE_UP_AFTER  # Without a word from the frontend.


class EventStream:
    """`pause` lets so many seconds pass."""

    def __init__(
        self, open_after: Open, clock: Clock, entropy: Entropy, pause: Callable[[float], object]
    ) -> None:
        self._open_after = open_after
        self._clock = clock
        self._entropy = entropy
        self._pause = pause
        self._place = ""
        self._heard_s = 0.0
        self._failed = 0  # Times in a row.

    def follow(self, patience: StreamTimeouts) -> Iterator[SseEvent | Lost]:
        """Each event once, in order. It ends at the time that `patience` says; else by an error that waiting
        does not cure, or that was not cured in time."""
        self._heard_s = self._clock.monotonic()
        while (stay_s := self._stay_s(patience)) > 0:
            error: RemudaError = FrontendUnreachable("the frontend ended the stream")
            try:
                yield from self._read(stay_s)
            except RemudaError as broken:
                if not broken.retryable or self._silent_for() > patience.give_up_after:
                    raise
                error = broken
            self._failed += 1
            delay_s = _BACKOFF.delay(self._failed, self._entropy.fraction()).total_seconds()
            if (stay_s := self._stay_s(patience)) > 0:
                yield Lost(error, delay_s)
                self._pause(min(delay_s, stay_s))

    def _read(self, stay_s: float) -> Iterator[SseEvent]:
        parser = SseParser()
        with self._open_after(self._place, stay_s) as chunks:
            for chunk in chunks:
                self._heard_s, self._failed = self._clock.monotonic(), 0
                for event in parser.feed(chunk):
                    self._place = event.id or self._place
                    yield event

    def _silent_for(self) -> timedelta:
        """None of it counts while the line stands: then the frontend says so, now and then."""
        return timedelta(seconds=self._clock.monotonic() - self._heard_s)

    def _stay_s(self, patience: StreamTimeouts) -> float:
        if patience.until_s is None:
            return STAY.total_seconds()
        return min(STAY.total_seconds(), patience.until_s - self._clock.monotonic())
