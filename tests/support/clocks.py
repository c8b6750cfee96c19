"""Clocks that go as a test says."""

from datetime import UTC, datetime, timedelta

from remuda.core.clock import SystemClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class HandClock:
    """Stands still until it is moved. Implements core.clock.Clock."""

    def __init__(self, start: datetime = START) -> None:
        self.passed_s = 0.0
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s

    def advance(self, span: timedelta) -> None:
        self.passed_s += span.total_seconds()


class AheadClock(SystemClock):
    """Tells the real time, and as much more as the test says."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead
