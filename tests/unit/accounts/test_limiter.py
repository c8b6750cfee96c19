"""Requests are held to the limits of their keys, and what they took is charged when they are over."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from remuda.accounts.budgets import HeldAmount, Lease, LeaseClaim, LimitKind, LimitSpan, lease
from remuda.accounts.keys import ApiKey, KeyScope, mint
from remuda.accounts.limit_state import LimitReached, QuotaUsedUp
from remuda.accounts.limiter import KeyLimits
from remuda.accounts.terms import KeyTerms
from remuda.core import limits as core_limits
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import StoreUnusable, Unavailable
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, 0, 40, tzinfo=UTC)


class Leases:
    """Implements LeaseStore in memory."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.held: dict[tuple[str, LimitKind, LimitSpan], dict[str, HeldAmount]] = {}
        self.asked = 0
        self.away = False

    async def claim(self, holder: str, claims: Sequence[LeaseClaim]) -> tuple[Sequence[Lease], datetime]:
        self.asked += 1
        if self.away:
            raise StoreUnusable("the database does not answer")
        now, leases = self._clock.now(), []
        for claim in claims:
            held = self.held.setdefault((claim.key, claim.kind, claim.span), {})
            leases.append(lease(claim, [one for name, one in held.items() if name != holder], now))
            held[holder] = HeldAmount(leases[-1].amount, now)
        return leases, now


class Rig:
    def __init__(self) -> None:
        self.clock = HandClock(START)
        self.store = Leases(self.clock)
        self.keys: list[ApiKey] = []

    def key(self, terms: KeyTerms) -> ApiKey:
        _, made = mint("app", KeyScope.INFERENCE, SeededEntropy(len(self.keys)), START, terms=terms)
        self.keys.append(made)
        return made

    @asynccontextmanager
    async def frontend(self, name: str = "here") -> AsyncIterator[KeyLimits]:
        made = KeyLimits(self.store, self.clock, name, lambda: self.keys)
        async with anyio.create_task_group() as tasks:
            await tasks.start(made.run)
            yield made
            tasks.cancel_scope.cancel()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def refused(limits: KeyLimits, key: ApiKey, tokens: int = 0) -> LimitReached:
    with pytest.raises(LimitReached) as error:
        await limits.admit(key, tokens, 0)
    return error.value


async def test_requests_of_a_minute_are_counted_and_come_back_with_the_next(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=3))
    async with rig.frontend() as limits:
        for _ in range(3):
            await limits.admit(key, 0, 0)
        error = await refused(limits, key)
        assert (error.kind, error.retry_after_s) == (LimitKind.REQUESTS_PER_MINUTE, 20)
        assert "'app' may make 3 requests per minute" in error.message
        rig.clock.advance(timedelta(seconds=20))
        await limits.admit(key, 0, 0)


async def test_requests_under_way_make_room_when_they_are_over(rig: Rig) -> None:
    key = rig.key(KeyTerms(concurrent_requests=2))
    async with rig.frontend() as limits:
        charges = [await limits.admit(key, 0, 0) for _ in range(2)]
        assert (await refused(limits, key)).retry_after_s == 1
        limits.settle(charges[0], 500, 500)
        assert await limits.admit(key, 0, 0)


async def test_what_a_request_may_take_is_set_aside_and_what_it_did_not_take_given_back(rig: Rig) -> None:
    key = rig.key(KeyTerms(tokens_per_day=1000))
    async with rig.frontend() as limits:
        charge = await limits.admit(key, 100, 700)
        error = await refused(limits, key, 300)
        assert isinstance(error, QuotaUsedUp)
        assert error.retry_after_s == 12 * 3600 - 40
        assert "200 tokens left of 1000 per day" in error.message
        limits.settle(charge, 150, 50)
        await limits.admit(key, 850, 0)


async def test_the_limit_that_is_in_the_way_for_longest_is_named(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=1, tokens_per_month=10))
    async with rig.frontend() as limits:
        await limits.admit(key, 10, 0)
        assert (await refused(limits, key, 10)).kind is LimitKind.TOKENS_PER_MONTH


async def test_a_request_that_one_limit_refuses_takes_nothing_of_the_others(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=1000, tokens_per_minute=100))
    async with rig.frontend() as limits:
        await limits.admit(key, 10, 0)  # Beyond this one, some of the many requests are set aside.
        assert limits.admit_at_once(key, 95, 0) is None
        assert (await refused(limits, key, 95)).kind is LimitKind.TOKENS_PER_MINUTE
        requests, tokens = limits.standing(key.id)
        assert (requests.remaining, tokens.remaining) == (999, 90)


async def test_answers_that_nobody_has_bounded_are_expected_to_be_like_those_before(rig: Rig) -> None:
    key = rig.key(KeyTerms(tokens_per_minute=10_000))
    async with rig.frontend() as limits:
        charge = await limits.admit(key, 10, None)
        assert charge.set_aside == (266,)
        limits.settle(charge, 3000, 2990)
        assert (await limits.admit(key, 10, None)).set_aside == (3000,)


async def test_two_frontends_let_in_as_many_as_one_would(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=10))
    let_in = 0
    async with rig.frontend("here") as here, rig.frontend("there") as there:
        for number in range(20):
            try:
                await (here if number % 3 else there).admit(key, 0, 0)
                let_in += 1
            except LimitReached:
                pass
    assert let_in == 10


async def test_a_request_that_is_over_makes_room_on_the_other_frontend_at_once(rig: Rig) -> None:
    """No time passes here: nothing waits for the next turn of a timer."""
    key = rig.key(KeyTerms(concurrent_requests=1))
    async with rig.frontend("here") as here, rig.frontend("there") as there:
        for one, other in ((here, there), (there, here), (here, there)):
            charge = await one.admit(key, 0, 0)
            assert (await refused(other, key)).kind is LimitKind.CONCURRENT_REQUESTS
            one.settle(charge, 5, 5)


async def test_a_frontend_that_stops_gives_back_what_it_has_not_spent(rig: Rig) -> None:
    key = rig.key(KeyTerms(tokens_per_day=1000))
    async with rig.frontend("here") as here:
        here.settle(await here.admit(key, 900, 0), 5, 0)
    assert [held["here"].amount for held in rig.store.held.values()] == [5]


async def test_terms_that_were_changed_hold_for_the_next_request(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=1))
    async with rig.frontend() as limits:
        await limits.admit(key, 0, 0)
        await refused(limits, key)
        raised = replace(key, terms=KeyTerms(requests_per_minute=2))
        assert await limits.admit(raised, 0, 0)
        await refused(limits, raised)


async def test_a_key_without_limits_costs_the_store_nothing(rig: Rig) -> None:
    async with rig.frontend() as limits:
        await limits.admit(rig.key(KeyTerms()), 10, None)
    assert not rig.store.asked


async def test_a_storm_that_is_refused_asks_the_store_once(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=1))
    async with rig.frontend() as limits:
        await limits.admit(key, 0, 0)
        await refused(limits, key)
        asked = rig.store.asked
        for _ in range(50):
            await refused(limits, key)
        assert rig.store.asked <= asked + 1


async def test_while_the_store_is_away_requests_are_let_in_up_to_the_limit(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=5))
    async with rig.frontend() as limits:
        await limits.admit(key, 0, 0)
        rig.store.away = True
        rig.clock.advance(timedelta(seconds=60))
        await limits.exchange()
        for _ in range(5):
            assert await limits.admit(key, 0, 0)
        await refused(limits, key)


async def test_a_store_that_is_late_is_said_to_be(rig: Rig) -> None:
    key = rig.key(KeyTerms(requests_per_minute=5))
    limits = KeyLimits(rig.store, rig.clock, "here", lambda: rig.keys)  # Which nobody runs.
    refusals = list[Unavailable]()

    async def ask() -> None:
        try:
            await limits.admit(key, 0, 0)
        except Unavailable as refusal:
            refusals.append(refusal)

    rig.store.away = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        rig.clock.advance(timedelta(seconds=2))
        await limits.exchange()
    assert "did not say in time" in refusals[0].message


async def test_however_many_keys_there_are_all_get_their_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_limits, "KEY_CLAIMS_AT_ONCE_MAX", 2)
    keys = [rig.key(KeyTerms(requests_per_minute=5)) for _ in range(7)]
    async with rig.frontend() as limits, anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(limits.admit, key, 0, 0)
    assert len(rig.store.held) == 7
