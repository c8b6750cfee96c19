"""What keys may take and have taken, in memory."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from remuda.accounts.budgets import HeldAmount, Lease, LeaseClaim, LimitKind, LimitSpan, lease
from remuda.accounts.keys import KeyRing
from remuda.accounts.limiter import KeyLimits
from remuda.accounts.usage import KeyUsage, UsageCounter, UsagePlace, UsageQuery, UsageRow
from remuda.core.clock import Clock, SystemClock
from remuda.gateway.services import Metering


class LeasesInMemory:
    """Implements accounts.limiter.LeaseStore, by the system's clock."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, LimitKind, LimitSpan], dict[str, HeldAmount]] = {}

    async def claim(self, holder: str, claims: Sequence[LeaseClaim]) -> tuple[Sequence[Lease], datetime]:
        now, leases = SystemClock().now(), []
        for claim in claims:
            held = self._held.setdefault((claim.key, claim.kind, claim.span), {})
            others = [one for name, one in held.items() if name != holder]
            leases.append(lease(claim, others, now))
            held[holder] = HeldAmount(leases[-1].amount, now)
        return leases, now


class UsageInMemory:
    """Implements accounts.usage.UsageStore; all in one row."""

    def __init__(self) -> None:
        self.used: dict[UsagePlace, KeyUsage] = {}

    async def add(self, writer: str, batch: int, used: Mapping[UsagePlace, KeyUsage]) -> None:
        for place, one in used.items():
            self.used.setdefault(place, KeyUsage()).add(one)

    async def rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        return [
            UsageRow(one, key=place.key, model=place.model, node=place.node)
            for place, one in self.used.items()
        ]


def metering_in_memory(keyring: KeyRing, clock: Clock) -> Metering:
    used = UsageInMemory()
    limits = KeyLimits(LeasesInMemory(), clock, "gateway", keyring.listed)
    return Metering(limits, UsageCounter(used, "gateway"), used)
