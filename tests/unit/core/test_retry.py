"""Backoff: growing, bounded, spread."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.retry import Backoff

BACKOFF = Backoff(timedelta(seconds=2), timedelta(seconds=30))


def test_delays_double_up_to_the_bound() -> None:
    assert [BACKOFF.delay(n, 0).total_seconds() for n in range(1, 7)] == [2, 4, 8, 16, 30, 30]


@given(st.integers(-5, 10**9), st.floats(0, 1))
def test_jitter_only_shortens(attempt: int, fraction: float) -> None:
    assert BACKOFF.delay(attempt, 0) / 2 <= BACKOFF.delay(attempt, fraction) <= BACKOFF.most
