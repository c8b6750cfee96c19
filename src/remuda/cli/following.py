"""Follows streams of a frontend, its events or one log, through whatever happens to the connection: it
reconnects when the frontend, the node or the connection goes away for a while. It decides nothing about
what it reads.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import FrontendUnreachable, RemudaError
from remuda.core.retry import Backoff
from remuda.core.sse import SseEvent, SseParser
from remuda.wire.codec import decode
from remuda.wire.logs import LogEnd, LogLine

STAY: Final = timedelta(minutes=50)  # Then a stream is begun anew, before a frontend ends it.
GIVE_UP_AFTER: Final = timedelta(minutes=15)
_BACKOFF: Final = Backoff(timedelta(milliseconds=250), timedelta(seconds=10))

OpenEvents = Callable[[str, float], AbstractContextManager[Iterator[bytes]]]
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
        self, open_after: OpenEvents, clock: Clock, entropy: Entropy, pause: Callable[[float], object]
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


CAUGHT_UP: Final = 1000  # Lines that are asked for after a gap, and remembered so that none is shown twice.
_LOG_BACKOFF: Final = Backoff(timedelta(seconds=1), timedelta(seconds=10), jitter=0.0)
_Words = tuple[str, str]

OpenLog = Callable[[int], AbstractContextManager[Iterator[bytes]]]
"""The stream of the log, beginning with so many of its latest lines. Raises a RemudaError."""


@dataclass(slots=True)
class Shown:
    """Which lines were shown, as far as that is needed to tell new ones after a gap. Pure."""

    _latest: datetime | None = None
    _at_latest: Counter[_Words] = field(default_factory=Counter)
    _words: deque[_Words] = field(default_factory=lambda: deque(maxlen=CAUGHT_UP))
    _owed_at_latest: Counter[_Words] = field(default_factory=Counter)
    _owed: Counter[_Words] = field(default_factory=Counter)

    @property
    def any(self) -> bool:
        return bool(self._words)

    def resume(self) -> None:
        """From here on lines may come that were shown."""
        self._owed_at_latest, self._owed = self._at_latest.copy(), Counter(self._words)

    def is_new(self, line: LogLine) -> bool:
        """Whether the line was not shown; then it counts as shown. Workers give each line its time, except
        for those written before the worker was restarted: these are known by their words."""
        words, at = (line.stream, line.text), _time(line)
        if self._was_shown(words, at):
            return False
        self._words.append(words)
        if at is not None and (self._latest is None or at > self._latest):
            self._latest, self._at_latest = at, Counter()
        if at is not None and at == self._latest:
            self._at_latest[words] += 1
        return True

    def _was_shown(self, words: _Words, at: datetime | None) -> bool:
        if not self._owed:  # There was no gap, or all that was shown has come again.
            return False
        if at is None or self._latest is None:
            return _taken(self._owed, words)
        if at == self._latest:
            return _taken(self._owed_at_latest, words)
        return at < self._latest


def _taken(owed: Counter[_Words], words: _Words) -> bool:
    if not owed[words]:
        return False
    owed[words] -= 1
    return True


def _time(line: LogLine) -> datetime | None:
    if line.approximate:
        return None
    try:
        at = datetime.fromisoformat(line.timestamp)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


class Pause(Protocol):
    def __call__(self, seconds: float, /) -> object: ...


def followed(open_log: OpenLog, tail: int, tell: Callable[[str], None], pause: Pause) -> Iterator[LogLine]:
    """New lines as they come, without end: what was connected once is connected again. `tell` takes what is
    to be said of the connection. Raises the RemudaError of a first connection, or of one that trying again
    does not help."""
    shown, attempt, connected = Shown(), 0, False
    while True:
        trouble = "the connection was closed"
        try:
            with open_log(tail) as chunks:
                if attempt:
                    tell("connected again")
                connected, attempt = True, 0
                parser = SseParser()
                for event in (event for chunk in chunks for event in parser.feed(chunk)):
                    if event.name == "line" and shown.is_new(line := decode(LogLine, event.data.encode())):
                        yield line
                    elif event.name == "end":
                        trouble = decode(LogEnd, event.data.encode()).message
        except RemudaError as error:
            if not connected or not error.retryable:
                raise
            trouble = error.message
        attempt += 1
        if attempt == 1:
            tell(f"{trouble}; connecting again")
        tail = CAUGHT_UP if shown.any or tail else 0
        shown.resume()
        pause(_LOG_BACKOFF.delay(attempt, 0.0).total_seconds())
