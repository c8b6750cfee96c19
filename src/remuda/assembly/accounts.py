"""Builds what knows keys and what they may take, and keeps it up to date."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remuda.accounts.keys import KeyRing
from remuda.accounts.limiter import KeyLimits
from remuda.assembly.running import background
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.gateway.services import Metering
from remuda.store.accounts import SqlKeyStore
from remuda.store.database import Database
from remuda.store.key_leases import SqlLeaseStore


@dataclass(frozen=True, slots=True)
class Accounts:
    keyring: KeyRing
    metering: Metering


@asynccontextmanager
async def open_accounts(database: Database, clock: Clock, entropy: Entropy) -> AsyncIterator[Accounts]:
    keyring = KeyRing(SqlKeyStore(database), clock, entropy)
    limits = KeyLimits(SqlLeaseStore(database), clock, entropy.token(), keyring.listed)
    async with background(keyring.run, limits.run):
        yield Accounts(keyring, Metering(limits))
