"""LeaseStore."""

from datetime import timedelta

import anyio
import pytest

from remuda.accounts.budgets import Lease, LeaseClaim, LimitKind, span_at
from remuda.accounts.keys import KeyScope, mint
from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.store.accounts import SqlKeyStore
from remuda.store.database import Database
from remuda.store.key_leases import SqlLeaseStore
from remuda.store.schema import key_leases
from tests.contract.store.builders import row_count

pytestmark = pytest.mark.anyio


@pytest.fixture
async def key(database: Database) -> str:
    _, made = mint("app", KeyScope.INFERENCE, SeededEntropy(1), SystemClock().now())
    await SqlKeyStore(database).add_key(made)
    return made.id


def claim(
    key: str, spent: int = 0, *, needed: int = 0, kind: LimitKind = LimitKind.TOKENS_PER_DAY
) -> LeaseClaim:
    return LeaseClaim(key, kind, span_at(kind, SystemClock().now()), 100, spent, 0, needed, needed)


async def one(database: Database, holder: str, wanted: LeaseClaim) -> Lease:
    leases, now = await SqlLeaseStore(database).claim(holder, [wanted])
    assert abs(now - SystemClock().now()) < timedelta(minutes=1)
    return leases[0]


async def test_what_one_frontend_holds_the_other_does_not_get(
    database: Database, other_frontend: Database, key: str
) -> None:
    first = await one(database, "here", claim(key, needed=80))
    assert (first.amount, first.free, first.holders) == (80, 20, 1)
    second = await one(other_frontend, "there", claim(key, needed=80))
    assert (second.amount, second.free, second.holders) == (20, 0, 2)
    given_back = await one(database, "here", claim(key, spent=30))
    assert (given_back.amount, given_back.free) == (30, 50)


async def test_a_claim_made_twice_changes_nothing(database: Database, key: str) -> None:
    wanted = claim(key, 10, needed=50)
    assert await one(database, "here", wanted) == await one(database, "here", wanted)


async def test_each_limit_and_key_is_apart(database: Database, key: str) -> None:
    daily, at_once = claim(key, needed=70), claim(key, needed=70, kind=LimitKind.CONCURRENT_REQUESTS)
    leases, _ = await SqlLeaseStore(database).claim("here", [daily, at_once, claim("another", needed=70)])
    assert [lease.amount for lease in leases] == [70, 70, 70]


async def test_frontends_that_claim_at_once_do_not_get_more_than_there_is(
    database: Database, other_frontend: Database, key: str
) -> None:
    amounts = dict[str, int]()

    async def take(of: Database, name: str) -> None:
        amounts[name] = (await one(of, name, claim(key, needed=30))).amount

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(take, database if number % 2 else other_frontend, f"frontend-{number}")
    assert sum(amounts.values()) == 100


async def test_spans_that_are_long_over_are_forgotten(database: Database, key: str) -> None:
    kind, now = LimitKind.REQUESTS_PER_MINUTE, SystemClock().now()
    old = LeaseClaim(key, kind, span_at(kind, now - timedelta(hours=2)), 100, 5)
    await one(database, "here", old)
    await one(database, "here", claim(key, needed=1))
    assert await row_count(database, key_leases) == 1
