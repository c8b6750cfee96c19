"""Follows one log through the frontend, and reconnects when the frontend, the node or the connection goes
away for a while."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from remuda.core.errors import RemudaError
from remuda.core.retry import Backoff
from remuda.core.sse import SseParser
from remuda.wire.codec import decode
from remuda.wire.logs import LogEnd, LogLine

CAUGHT_UP: Final = 1000  # Lines that are asked for after a gap, and remembered so that none is shown twice.
_AGAIN: Final = Backoff(timedelta(seconds=1), timedelta(seconds=10), jitter=0.0)
_Words = tuple[str, str]

Open = Callable[[int], AbstractContextManager[Iterator[bytes]]]
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


def followed(open_log: Open, tail: int, tell: Callable[[str], None], pause: Pause) -> Iterator[LogLine]:
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
        pause(_AGAIN.delay(attempt, 0.0).total_seconds())
