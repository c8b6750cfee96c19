"""One frontend's share of one limit of one key: what it may spend and has spent. Pure: the time is given, and
all times are by the database's clock.

A span that has just begun is spent on credit until the store has answered: a small part of the limit, so that
requests do not wait for the store each minute, and all frontends' credit together stays far below a tenth of
it. Limits that are too small for a credit have their first request wait.
"""

from datetime import datetime, timedelta
from typing import Final

from remuda.accounts.budgets import (
    ALWAYS,
    QUOTAS,
    REQUESTS,
    Lease,
    LeaseClaim,
    LimitKind,
    LimitSpan,
    span_at,
)

_CREDIT_PART: Final = 40
_AHEAD_PART: Final = 50  # Of a limit, so much is set aside beyond what was used lately.
_CERTAIN: Final = timedelta(seconds=1)  # For so long it is believed that there is no more.
_SEATS_CERTAIN: Final = timedelta(seconds=0.25)  # A request may be over at any time.
_SEAT_LOOKS: Final = 3  # Into the store, before it is believed that others use all of them.
_IDLE_SEATS_PART: Final = 8  # Of what may be under way at once, the most that all frontends hold unused.
_SCARCE_PART: Final = 4  # With less than this part of it left to all, what is not needed is not kept.
_RENEW: Final = timedelta(seconds=5)  # What is in flight is announced so often, also without a change.
_QUOTA_AWAY_PART: Final = 10  # Of a quota whose rest is unknown, spent while the store is away.


class LimitShare:
    def __init__(self, key: str, kind: LimitKind, limit: int, now: datetime) -> None:
        self.key = key
        self.kind = kind
        self.of_requests = kind in REQUESTS  # Hashing a kind takes longer than all else that is done with it.
        self.limit = limit
        self.span = span_at(kind, now)
        self.spent = 0
        self.needed = 0  # By requests that wait.
        self._allowed = 0  # To be spent altogether in this span.
        self._free = 0  # When the store was last asked.
        self._holders = 0  # 0: the store was never asked.
        self._told_at: datetime | None = None  # In this span.
        self._taken = self._taken_before = 0  # Since the last turn, and between the last two.
        self._away = False

    def limited_to(self, limit: int) -> None:
        """The key's terms were changed."""
        if limit != self.limit:
            self.limit = limit
            self._allowed = min(self._allowed, max(self.spent, limit))
            self._told_at = None
            self._holders = 0

    def at(self, now: datetime) -> None:
        """Begin a new span where the last one is over."""
        if self.span is ALWAYS or now < self.span.ends:
            return
        self.span = span_at(self.kind, now)
        self.spent = self._allowed = self._free = 0
        self._told_at = None

    def cost(self, amount: int) -> int:
        """What is set aside for a request that may take so much: one that takes more than the whole limit
        goes alone."""
        return amount if amount < self.limit else self.limit

    def has(self, amount: int) -> bool:
        spent = self.spent + (amount if amount < self.limit else self.limit)
        if self._told_at is not None and not self._away:  # As it nearly always is.
            return spent <= self._allowed
        return spent <= self._ceiling()

    def _ceiling(self) -> int:
        if self._told_at is None:
            return max(self._allowed, self._credit())
        return self._allowed + (self._free // self._holders if self._away else 0)

    def _credit(self) -> int:
        if not self._away:
            return 0 if self._holders == 0 else self.limit // (_CREDIT_PART * self._holders)
        share = self.limit // max(self._holders, 1)
        return share // _QUOTA_AWAY_PART if self.kind in QUOTAS else share

    def refused(self, now: datetime) -> bool:
        """Whether it is certain enough that there is no more: asking the store again would be for nothing."""
        certain = _SEATS_CERTAIN if self.kind is LimitKind.CONCURRENT_REQUESTS else _CERTAIN
        return self._away or (self._told_at is not None and now - self._told_at < certain and self._free <= 0)

    @property
    def looks(self) -> int:
        """How often the store is asked for one request before it is refused: a seat that was just given up on
        another frontend is on its way back."""
        shared = self.kind is LimitKind.CONCURRENT_REQUESTS and self._holders > 1
        return _SEAT_LOOKS if shared and not self._away else 0

    def take(self, amount: int) -> int | None:
        """What was set aside; None: there is not enough, and nothing was."""
        cost = amount if amount < self.limit else self.limit
        spent = self.spent + cost
        known = self._told_at is not None and not self._away
        if spent > (self._allowed if known else self._ceiling()):
            return None
        self.spent = spent
        self._taken += cost
        return cost

    def give_back(self, cost: int) -> None:
        """What was just taken, for a request that another limit does not let in."""
        self.spent -= cost
        self._taken -= cost

    def settle(self, span: LimitSpan, set_aside: int, took: int) -> None:
        """A request that had so much set aside in that span is over, and took this. What it took beyond that
        is owed, also in the next span."""
        if took > set_aside or span is self.span or span == self.span:
            spent = self.spent + took - set_aside
            self.spent = spent if spent > 0 else 0

    @property
    def remaining(self) -> int:
        """As far as is known here, of all that is left on all frontends."""
        known = self.limit if self._told_at is None else self._allowed + self._free
        left = known - self.spent
        if left < 0:
            return 0
        return left if left < self.limit else self.limit

    def turn(self) -> None:
        """About a second has passed."""
        self._taken, self._taken_before = 0, self._taken

    @property
    def _wanted(self) -> int:
        lately = max(self._taken, self._taken_before)
        if not lately and not self.needed:
            return 0
        if self.kind is LimitKind.CONCURRENT_REQUESTS:
            # What is held and not used keeps the others from it, and comes back with each request.
            idle_most = self.limit // (_IDLE_SEATS_PART * max(self._holders, 1))
            return self.needed + min(2 * lately, idle_most)
        return self.needed + 2 * lately + self.limit // _AHEAD_PART

    @property
    def withholds(self) -> bool:
        """Whether others may be refused what lies here unused: it is to be given back at once."""
        scarce = self._free <= self.limit // _SCARCE_PART
        return scarce and self._allowed - self.spent > 2 * self._wanted

    def due(self, now: datetime) -> bool:
        """Whether it is to be written to the store."""
        left, wanted = self._allowed - self.spent, self._wanted
        if self.needed or left < 0 or left > 2 * wanted:
            return True
        if left < wanted // 2 and not self.refused(now):
            return True
        in_flight = self.kind is LimitKind.CONCURRENT_REQUESTS and (self.spent or left)
        return bool(in_flight) and (self._told_at is None or now - self._told_at >= _RENEW)

    def claim(self) -> LeaseClaim:
        """What is written to the store. What is more than it asks for is given back, from now on."""
        wanted = self._wanted
        self._allowed = min(self._allowed, self.spent + wanted)
        kept = max(self._allowed - self.spent, 0)
        return LeaseClaim(self.key, self.kind, self.span, self.limit, self.spent, kept, self.needed, wanted)

    def release(self) -> LeaseClaim:
        """Everything that is not spent is given back: this frontend stops."""
        self._allowed = min(self._allowed, self.spent)
        return LeaseClaim(self.key, self.kind, self.span, self.limit, self.spent)

    def leased(self, lease: Lease, now: datetime) -> None:
        """The store's answer."""
        self._away = False
        self._holders = lease.holders
        if lease.span == self.span:
            self._allowed, self._free, self._told_at = lease.amount, lease.free, now

    def store_away(self) -> None:
        """It has not answered: until it does, this frontend goes by its part of what it last knew of."""
        self._away = True
