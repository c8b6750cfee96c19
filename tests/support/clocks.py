"""Clocks that go as a test says."""

import asyncio
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

    def thread_cpu(self) -> float:
        return self.passed_s

    def advance(self, span: timedelta) -> None:
        self.passed_s += span.total_seconds()


class AheadClock(SystemClock):
    """Tells the real time, and as much more as the test says."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


def elapsed_s() -> float:
    """On the event loop's own clock; on a virtual loop that is the time since its beginning."""
    return asyncio.get_running_loop().time()


class HostClock:
    """Runs at the event loop's pace, with an error of its own. Implements core.clock.Clock."""

    def __init__(self) -> None:
        self.error = timedelta()

    def now(self) -> datetime:
        return START + timedelta(seconds=elapsed_s()) + self.error

    def monotonic(self) -> float:
        return elapsed_s()

    def thread_cpu(self) -> float:
        return elapsed_s()
