"""Time as an argument: code that needs the time, or waits, is given a Clock."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, always aware and in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def thread_cpu(self) -> float:
        """Seconds that this thread has worked, however long it had to wait for a core."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def thread_cpu(self) -> float:
        return time.thread_time()
