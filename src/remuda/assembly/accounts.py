"""Builds what knows keys and what they may take, and keeps it up to date."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remuda.accounts.keys import KeyRing
from remuda.accounts.limiter import KeyLimits
from remuda.accounts.usage import UsageCounter
from remuda.assembly.running import background
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.gateway.services import Metering
from remuda.store.accounts import SqlKeyStore
from remuda.store.database import Database
from remuda.store.key_leases import SqlLeaseStore
from remuda.store.usage import SqlUsageStore


@dataclass(frozen=True, slots=True)
class Accounts:
    keyring: KeyRing
    metering: Metering


@asynccontextmanager
async def open_accounts(database: Database, clock: Clock, entropy: Entropy) -> AsyncIterator[Accounts]:
    keyring = KeyRing(SqlKeyStore(database), clock, entropy)
    limits = KeyLimits(SqlLeaseStore(database), clock, entropy.token(), keyring.listed)
    used = SqlUsageStore(database)
    usage = UsageCounter(used, entropy.token())
    async with background(keyring.run, limits.run, usage.run):
        yield Accounts(keyring, Metering(limits, usage, used))
