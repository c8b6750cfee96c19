"""Clocks of simulated hosts: all run at the loop's pace, each with an error of its own."""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def elapsed_s() -> float:
    """True time since the beginning, which no host can see."""
    return asyncio.get_running_loop().time()


class HostClock:
    """Implements core.clock.Clock."""

    def __init__(self) -> None:
        self.error = timedelta()

    def now(self) -> datetime:
        return START + timedelta(seconds=elapsed_s()) + self.error

    def monotonic(self) -> float:
        return elapsed_s()
