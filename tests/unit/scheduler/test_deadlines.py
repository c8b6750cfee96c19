"""How long a load may take."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from remuda.core import limits
from remuda.scheduler.loader import first_limit, load_entered, load_limit, pushed

GIB = 1 << 30
SECONDS = st.floats(0, 1e6)


def test_load_call_gets_longer_with_the_model_up_to_a_most() -> None:
    """D1 row 32: 83 GB were killed after five minutes."""
    assert load_limit(0) == timedelta(minutes=5)
    assert load_limit(83 * GIB) == timedelta(minutes=5, seconds=83 * 20)
    assert load_limit(100_000 * GIB) == timedelta(hours=6)


def test_limit_that_was_given_wins_both_ways() -> None:
    assert load_limit(83 * GIB, timedelta(seconds=1)) == timedelta(seconds=1)
    assert load_limit(0, timedelta(hours=12)) == timedelta(hours=12)


def test_whole_load_has_twenty_five_minutes_at_least() -> None:
    assert first_limit(timedelta(minutes=1), timedelta(minutes=1)) == timedelta(minutes=25)
    assert first_limit(timedelta(minutes=15), timedelta(minutes=15)) == timedelta(minutes=35)


@given(SECONDS, SECONDS, SECONDS)
def test_what_moves_pushes_the_deadline_on_and_never_past_a_day(
    began_s: float, later_s: float, left_s: float
) -> None:
    now_s = began_s + later_s
    most_s = began_s + limits.LOAD_WHOLE_S
    expires_s = min(now_s + left_s, most_s)

    after_s = pushed(now_s, expires_s, began_s)

    assert after_s >= expires_s
    assert after_s <= most_s
    assert after_s == most_s or after_s >= now_s + 300


@given(SECONDS, SECONDS)
def test_load_call_is_never_cut_short_by_what_came_before_it(now_s: float, left_s: float) -> None:
    load = timedelta(minutes=5)
    assert load_entered(now_s, now_s + left_s, load) >= now_s + load.total_seconds()


def test_whole_load_outlasts_the_load_call_so_that_its_own_limit_is_what_is_told() -> None:
    load = timedelta(minutes=7)
    assert load_entered(100.0, 101.0, load) == 100.0 + timedelta(minutes=7 + 5).total_seconds()
