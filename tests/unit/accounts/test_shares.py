"""Several frontends share one limit of a key: whatever order things come in, they let in no more than it
says, and in the end all of it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.accounts.budgets import HeldAmount, Lease, LeaseClaim, LimitKind, lease
from remuda.accounts.shares import LimitShare

START = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)
MINUTE = LimitKind.REQUESTS_PER_MINUTE
AT_ONCE = LimitKind.CONCURRENT_REQUESTS


@dataclass
class Fleet:
    """Frontends, each with its share; a store that answers each claim when it is told to."""

    kind: LimitKind
    limit: int
    size: int
    now: datetime = START
    shares: dict[int, LimitShare] = field(default_factory=dict)
    rows: dict[tuple[int, datetime], HeldAmount] = field(default_factory=dict)
    let_in: dict[datetime, int] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)
    lives: int = 0

    def __post_init__(self) -> None:
        for _ in range(self.size):
            self.begin()

    def begin(self) -> int:
        """A further frontend, or an earlier one's next life."""
        self.lives += 1
        self.shares[self.lives] = LimitShare("key", self.kind, self.limit, self.now)
        self.in_flight[self.lives] = 0
        return self.lives

    def names(self) -> list[int]:
        return sorted(self.shares)

    def request(self, name: int, *, waits: bool = True) -> bool:
        share = self.shares[name]
        share.at(self.now)
        if not share.has(1) and waits:
            share.needed += 1
            self.exchange(name)
            share.needed -= 1
        if share.take(1) is None:
            return False
        self.let_in[share.span.begins] = self.let_in.get(share.span.begins, 0) + 1
        self.in_flight[name] += 1
        return True

    def ended(self, name: int) -> None:
        if self.in_flight[name]:
            self.in_flight[name] -= 1
            if self.kind is AT_ONCE:
                self.shares[name].settle(self.shares[name].span, 1, 0)
                if self.shares[name].withholds:
                    self.exchange(name)

    def exchange(self, name: int, meanwhile: int = 0) -> None:
        """With as many requests on their way in between the claim and its answer."""
        share = self.shares[name]
        share.at(self.now)
        answer = self.written(name, share.claim())
        for _ in range(meanwhile):
            self.request(name, waits=False)
        share.leased(answer, self.now)

    def written(self, name: int, claim: LeaseClaim) -> Lease:
        begins = claim.span.begins
        others = [held for (who, span), held in self.rows.items() if who != name and span == begins]
        answer = lease(claim, others, self.now)
        self.rows[name, begins] = HeldAmount(answer.amount, self.now)
        return answer

    def lose(self, name: int, *, after_claim: bool) -> None:
        """Its machine is gone, perhaps before it heard the store's answer. Another takes its place."""
        if after_claim:
            self.shares[name].at(self.now)
            self.written(name, self.shares[name].claim())
        del self.shares[name], self.in_flight[name]
        self.begin()

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for name, share in self.shares.items():
            share.at(self.now)
            share.turn()
            if share.due(self.now):
                self.exchange(name)


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["request", "storm", "ended", "exchange", "lose", "lose_late", "time"]),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=60,
)


def play(fleet: Fleet, steps: list[Step]) -> int:
    """The most that were ever let in."""
    peak = 0
    for what, who, amount in steps:
        names = fleet.names()
        name = names[who % len(names)]
        if what in ("request", "storm"):
            for _ in range(amount if what == "storm" else 1):
                fleet.request(name)
        elif what == "ended":
            fleet.ended(name)
        elif what == "exchange":
            fleet.exchange(name, meanwhile=amount)
        elif what == "time":
            fleet.pass_time(amount / 10)
        else:
            fleet.lose(name, after_claim=what == "lose_late")
        peak = max(peak, most(fleet))
    return peak


def most(fleet: Fleet) -> int:
    """Of a minute, or at once."""
    if fleet.kind is AT_ONCE:
        return sum(fleet.in_flight.values())
    return max(fleet.let_in.values(), default=0)


@given(st.integers(1, 500), st.integers(1, 4), STEPS)
def test_no_minute_has_a_tenth_more_than_its_limit(limit: int, size: int, steps: list[Step]) -> None:
    assert play(Fleet(MINUTE, limit, size), steps) <= limit + limit // 10


@given(st.integers(1, 60), st.integers(1, 4), STEPS)
def test_no_more_requests_are_under_way_at_once(limit: int, size: int, steps: list[Step]) -> None:
    assert play(Fleet(AT_ONCE, limit, size), steps) <= limit


@given(st.integers(1, 60), st.integers(1, 60))
def test_seats_that_one_had_are_soon_had_by_another(limit: int, requests: int) -> None:
    """A client may come to each of several frontends in turn, and is refused by none for what is over."""

    def left_to_another(waited_s: int) -> int:
        fleet = Fleet(AT_ONCE, limit, 2)
        here, there = fleet.names()
        for _ in range(sum(fleet.request(here) for _ in range(requests))):
            fleet.ended(here)
        if waited_s:
            fleet.pass_time(waited_s)
        return sum(fleet.request(there) for _ in range(limit))

    if requests >= limit:
        assert left_to_another(0) >= min(limit // 4 + 1, limit - limit // 4), "at once"
    assert left_to_another(1) >= limit - limit // 4


@given(st.integers(1, 500), st.integers(1, 4), STEPS)
def test_what_the_others_leave_is_let_in_by_whoever_is_asked(
    limit: int, size: int, steps: list[Step]
) -> None:
    """Idle frontends give back what they had set aside, so nothing of a new minute is out of reach."""
    fleet = Fleet(MINUTE, limit, size)
    play(fleet, [step for step in steps if not step[0].startswith("lose")])
    fleet.pass_time(65)
    for _ in range(3):
        fleet.pass_time(1)
    name = fleet.names()[0]
    begins = fleet.shares[name].span.begins
    while fleet.request(name):
        pass
    assert fleet.let_in[begins] >= limit


@given(st.integers(1, 1000), st.integers(1, 4))
def test_while_the_store_is_away_frontends_go_by_their_parts(limit: int, size: int) -> None:
    fleet = Fleet(MINUTE, limit, size)
    for _ in range(2):
        for name in fleet.names():
            fleet.request(name)
            fleet.exchange(name)
    for share in fleet.shares.values():
        share.store_away()
    fleet.now += timedelta(seconds=60)
    begins = []
    for name in fleet.names():
        while fleet.request(name, waits=False):
            pass
        begins.append(fleet.shares[name].span.begins)
    assert fleet.let_in.get(begins[0], 0) <= limit + limit // 10
    assert limit < size or fleet.let_in[begins[0]] > 0


def test_a_new_minute_is_spent_on_credit_until_the_store_has_answered() -> None:
    fleet = Fleet(MINUTE, 400, 1)
    assert not fleet.request(1, waits=False)  # Nothing is known of other frontends yet.
    assert fleet.request(1)
    fleet.now += timedelta(seconds=60)
    assert [fleet.request(1, waits=False) for _ in range(11)] == [True] * 10 + [False]


def _with_all(limit: int) -> LimitShare:
    """The only frontend's share, of tokens."""
    share = LimitShare("key", LimitKind.TOKENS_PER_MINUTE, limit, START)
    share.leased(Lease("key", share.kind, share.span, limit, 0, 1), START)
    return share


def test_a_request_that_takes_more_than_the_limit_goes_alone() -> None:
    share = _with_all(100)
    assert share.cost(5000) == 100
    assert share.take(5000) == 100
    assert share.take(1) is None


def test_what_is_not_enough_is_not_taken_and_what_is_given_back_is_there_again() -> None:
    share = _with_all(100)
    assert share.take(60) == 60
    assert share.take(60) is None
    assert share.spent == 60
    share.give_back(60)
    assert share.take(100) == 100


@pytest.mark.parametrize(("took", "spent"), [(40, 40), (100, 100), (130, 130)])
def test_a_request_costs_what_it_took(took: int, spent: int) -> None:
    share = _with_all(1000)
    set_aside = share.take(100)
    assert set_aside == 100
    share.settle(share.span, set_aside, took)
    assert share.spent == spent


@pytest.mark.parametrize(("took", "spent"), [(40, 0), (130, 30)])
def test_what_a_request_of_an_earlier_minute_took_too_much_is_owed_in_this_one(took: int, spent: int) -> None:
    share = _with_all(1000)
    before, set_aside = share.span, share.take(100)
    assert set_aside == 100
    share.at(START + timedelta(minutes=1))
    share.settle(before, set_aside, took)
    assert share.spent == spent


def test_a_limit_that_is_lowered_holds_at_once() -> None:
    fleet = Fleet(MINUTE, 100, 1)
    for _ in range(5):
        assert fleet.request(1)
    fleet.shares[1].limited_to(5)
    assert not fleet.request(1)


def test_a_quiet_frontend_tells_the_store_nothing() -> None:
    fleet = Fleet(MINUTE, 100, 1)
    fleet.request(1)
    for _ in range(4):
        fleet.pass_time(1)
    assert not fleet.shares[1].due(fleet.now)
