"""Backoff arithmetic. Pure: the caller brings the attempt number and the randomness."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling delays from `first` up to `most`, each shortened by up to `jitter` of itself.

    Jitter only ever shortens, so `most` stays a true bound and a fleet that lost its frontend
    at one instant does not come back at one instant.
    """

    first: timedelta
    most: timedelta
    jitter: float = 0.5

    def delay(self, attempt: int, fraction: float) -> timedelta:
        """The wait after failed attempt number `attempt` (from 1); `fraction` in 0..1 is the randomness."""
        doublings = min(max(attempt, 1) - 1, 32)
        full = min(self.first * (1 << doublings), self.most)
        return full * (1 - self.jitter * fraction)
