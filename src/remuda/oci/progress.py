"""How far a fetch has come: overall percentage, rate and time left, from bytes that were measured.

Pure: time is an argument. Whatever order events come in, and also when a file starts over, the percentage
neither falls nor passes 100.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

_WINDOW_S = 10.0
_SAMPLES_MAX = 200


class PullPhase(StrEnum):
    """Words of the install protocol."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"


@dataclass(frozen=True, slots=True)
class FileProgress:
    """One file's state. `file` is the digest of a layer, or the name of an archive."""

    file: str
    done_bytes: int
    total_bytes: int
    phase: PullPhase = PullPhase.DOWNLOADING


OnProgress = Callable[[FileProgress], None]


def ignore_progress(event: FileProgress) -> None:
    """For callers whom nobody watches."""


@dataclass(frozen=True, slots=True)
class Overall:
    done_bytes: int
    total_bytes: int
    percentage: float
    rate_bytes_s: float
    """Of bytes that travelled; what was on the disk already does not make a connection faster."""
    left: timedelta | None
    """None while nothing moves."""


class Meter:
    """Sums what was downloaded of several files. Files it was not told of are ignored."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = dict(totals)
        self._done: dict[str, int] = {}
        self._travelled = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        self._most_done = 0

    def observe(self, event: FileProgress, at: float) -> Overall:
        """The state after this event; `at` is in seconds of a clock that never goes back."""
        total = self._totals.get(event.file)
        if total is not None and event.phase is PullPhase.DOWNLOADING:
            done = min(max(event.done_bytes, 0), total)
            # The first word of a file says where it was resumed; only what follows was measured.
            self._travelled += max(done - self._done.get(event.file, done), 0)
            self._done[event.file] = done
        self._sample(at)
        return self.overall(at)

    def overall(self, at: float) -> Overall:
        total = sum(self._totals.values())
        self._most_done = done = max(self._most_done, sum(self._done.values()))
        percentage = 100.0 * done / total if total else 100.0
        rate = self._rate(at)
        left = timedelta(seconds=min((total - done) / rate, 1e8)) if rate > 0 else None
        return Overall(done, total, percentage, rate, left)

    def _sample(self, at: float) -> None:
        newest = self._samples[-1][0] if self._samples else None
        if newest is None or at - newest >= _WINDOW_S / _SAMPLES_MAX:
            self._samples.append((at, self._travelled))
        while len(self._samples) > 1 and self._samples[1][0] <= at - _WINDOW_S:
            self._samples.popleft()

    def _rate(self, at: float) -> float:
        if not self._samples:
            return 0.0
        since, travelled = self._samples[0]
        span = at - since
        return (self._travelled - travelled) / span if span > 0 else 0.0
