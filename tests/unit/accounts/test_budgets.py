"""How frontends share what a key may take: never more than there is."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.accounts.budgets import (
    ALWAYS,
    HOLDER_LOST_S,
    HeldAmount,
    LeaseClaim,
    LimitKind,
    LimitSpan,
    lease,
    limits_of,
    span_at,
)
from remuda.accounts.terms import KeyTerms

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
AMOUNT = st.integers(0, 2000)
WINDOWED = [kind for kind in LimitKind if kind is not LimitKind.CONCURRENT_REQUESTS]


def claim(limit: int, spent: int = 0, *, kept: int = 0, needed: int = 0, wanted: int = 0) -> LeaseClaim:
    kind = LimitKind.REQUESTS_PER_MINUTE
    return LeaseClaim("key", kind, span_at(kind, NOW), limit, spent, kept, needed, wanted)


def test_a_key_has_the_limits_that_its_terms_name() -> None:
    assert limits_of(KeyTerms()) == {}
    assert limits_of(KeyTerms(requests_per_minute=3, tokens_per_month=5)) == {
        LimitKind.REQUESTS_PER_MINUTE: 3,
        LimitKind.TOKENS_PER_MONTH: 5,
    }


@given(st.sampled_from(WINDOWED), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_every_moment_is_in_one_span_and_the_next_follows_at_once(kind: LimitKind, naive: datetime) -> None:
    now = naive.replace(tzinfo=UTC)
    span = span_at(kind, now)
    assert span.has(now)
    assert span_at(kind, span.ends).begins == span.ends
    assert span_at(kind, span.ends - timedelta(microseconds=1)) == span


def test_a_month_is_a_calendar_month() -> None:
    assert span_at(LimitKind.TOKENS_PER_MONTH, NOW) == LimitSpan(
        datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
    )


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.lists(AMOUNT, max_size=4))
def test_leases_never_add_up_to_more_than_the_limit(
    limit: int, spent: int, kept: int, needed: int, wanted: int, others: list[int]
) -> None:
    held = [HeldAmount(amount, NOW) for amount in others]
    given_ = lease(claim(limit, spent, kept=kept, needed=needed, wanted=wanted), held, NOW)
    assert given_.amount >= spent
    assert given_.amount + sum(others) <= max(limit, spent + sum(others))
    assert given_.free == max(limit - sum(others) - given_.amount, 0)


@given(AMOUNT, AMOUNT, st.lists(AMOUNT, max_size=4))
def test_who_needs_something_gets_all_that_nobody_holds(limit: int, needed: int, others: list[int]) -> None:
    given_ = lease(claim(limit, needed=needed), [HeldAmount(amount, NOW) for amount in others], NOW)
    assert given_.amount == min(needed, max(limit - sum(others), 0))


def test_what_is_only_wanted_leaves_the_others_their_share() -> None:
    assert lease(claim(100, wanted=100), [HeldAmount(10, NOW)], NOW).amount == 45


def test_what_a_lost_frontend_has_of_a_minute_stays_spent() -> None:
    long_ago = NOW - timedelta(seconds=2 * HOLDER_LOST_S)
    given_ = lease(claim(100, wanted=100), [HeldAmount(30, long_ago)], NOW)
    assert (given_.amount, given_.holders) == (70, 1)


def test_requests_of_a_lost_frontend_are_under_way_no_more() -> None:
    asked = claim(10, wanted=10)._replace(kind=LimitKind.CONCURRENT_REQUESTS, span=ALWAYS)
    lost, alive = HeldAmount(4, NOW - timedelta(seconds=2 * HOLDER_LOST_S)), HeldAmount(3, NOW)
    assert lease(asked._replace(needed=10), [lost, alive], NOW).amount == 7


@pytest.mark.parametrize("late_s", [-3, 63])
def test_a_claim_for_another_span_is_given_nothing_new(late_s: int) -> None:
    begins = span_at(LimitKind.REQUESTS_PER_MINUTE, NOW).begins
    assert lease(claim(100, 5, kept=2, needed=50), [], begins + timedelta(seconds=late_s)).amount == 7


def test_what_may_be_being_spent_right_now_is_not_taken_away() -> None:
    given_ = lease(claim(100, 10, kept=60, wanted=60), [HeldAmount(0, NOW)], NOW)
    assert given_.amount == 70
