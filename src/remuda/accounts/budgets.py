"""What keys may take, in which span of time, and how frontends share it: each sets a part aside for itself
and lets requests in against that, so that none has to ask for each request. Pure.

A frontend claims for one limit: so much is spent here, so much is wanted beside. Its row then says what it
may spend altogether (its lease). The leases of one span never add up to more than the limit, but for what was
spent beyond a lease. So a frontend that is lost takes what it had set aside with it, until the span is over,
and nothing can be spent twice.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from remuda.accounts.terms import KeyTerms

HOLDER_LOST_S: Final = 15.0
"""A frontend that has not renewed what it holds for so long has no requests in flight, for the others."""
EARLY: Final = timedelta(seconds=2)
"""Clocks differ: a claim for a span that is over by less than this, or begins in less, is taken."""


class LimitKind(StrEnum):
    """Named as in KeyTerms."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENT_REQUESTS = "concurrent_requests"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"


REQUESTS: Final = frozenset({LimitKind.REQUESTS_PER_MINUTE, LimitKind.CONCURRENT_REQUESTS})
PER_MINUTE: Final = frozenset({LimitKind.REQUESTS_PER_MINUTE, LimitKind.TOKENS_PER_MINUTE})
QUOTAS: Final = frozenset({LimitKind.TOKENS_PER_DAY, LimitKind.TOKENS_PER_MONTH})


def limits_of(terms: KeyTerms) -> dict[LimitKind, int]:
    """Those that there are."""
    return {kind: limit for kind in LimitKind if (limit := getattr(terms, kind.value))}


class LimitSpan(NamedTuple):
    """In which a limit holds, by the database's clock: a minute, day or month of UTC. What is counted while
    it lasts, such as requests in flight, has one span that never ends."""

    begins: datetime
    ends: datetime

    def has(self, now: datetime) -> bool:
        return self.begins <= now < self.ends

    def takes_claims(self, now: datetime) -> bool:
        return self.begins - EARLY <= now < self.ends + EARLY


ALWAYS: Final = LimitSpan(datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))


def span_at(kind: LimitKind, now: datetime) -> LimitSpan:
    """The one that `now` is in."""
    if kind is LimitKind.CONCURRENT_REQUESTS:
        return ALWAYS
    if kind in PER_MINUTE:
        minute = now.replace(second=0, microsecond=0)
        return LimitSpan(minute, minute + timedelta(minutes=1))
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if kind is LimitKind.TOKENS_PER_DAY:
        return LimitSpan(day, day + timedelta(days=1))
    first = day.replace(day=1)
    return LimitSpan(first, (first + timedelta(days=32)).replace(day=1))


class LeaseClaim(NamedTuple):
    """One frontend to the store, of one limit: `spent` here in this span; beside it `kept`, which may be
    being spent right now, `needed` by requests that wait, and `wanted` altogether."""

    key: str
    kind: LimitKind
    span: LimitSpan
    limit: int
    spent: int
    kept: int = 0
    needed: int = 0
    wanted: int = 0


class HeldAmount(NamedTuple):
    """What the store has of another frontend's lease."""

    amount: int
    renewed_at: datetime


class Lease(NamedTuple):
    """What a frontend may spend altogether in the span. `free`: what is not set aside. `holders`: how
    many frontends hold some of it lately, this one included."""

    key: str
    kind: LimitKind
    span: LimitSpan
    amount: int
    free: int
    holders: int


def lease(claim: LeaseClaim, others: Sequence[HeldAmount], now: datetime) -> Lease:
    """What a claim is answered with. Requests that wait are served first; what is only wanted is no more than
    a fair share of what is left."""
    fresh = now - timedelta(seconds=HOLDER_LOST_S)
    alive = [held for held in others if held.renewed_at >= fresh]
    counted = alive if claim.kind is LimitKind.CONCURRENT_REQUESTS else others
    holders = 1 + len(alive)
    left = max(claim.limit - sum(held.amount for held in counted) - claim.spent, 0)
    fair = min(claim.wanted, left // holders)
    set_aside = min(left, max(claim.kept, claim.needed, fair))
    if not claim.span.takes_claims(now):
        set_aside = min(left, claim.kept)
    amount = claim.spent + set_aside
    return Lease(claim.key, claim.kind, claim.span, amount, left - set_aside, holders)
