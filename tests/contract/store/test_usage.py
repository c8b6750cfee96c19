"""UsageStore."""

from datetime import date

import anyio
import pytest

from remuda.accounts.keys import KeyScope, mint
from remuda.accounts.usage import KeyUsage, UsageField, UsagePlace, UsageQuery, UsageStore
from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.store.accounts import SqlKeyStore
from remuda.store.database import Database
from remuda.store.usage import SqlUsageStore

pytestmark = pytest.mark.anyio
TODAY, BEFORE = date(2026, 3, 2), date(2026, 3, 1)
ONE = KeyUsage(1, 0, 10, 5, 7)


@pytest.fixture
def store(database: Database) -> UsageStore:
    return SqlUsageStore(database)


def asked(*by: UsageField, since: date = BEFORE, key: str = "", model: str = "") -> UsageQuery:
    return UsageQuery(since, TODAY, by, key, model)


async def test_what_is_added_is_summed_up_as_it_is_asked_for(store: UsageStore) -> None:
    for batch, (day, model, node) in enumerate(
        [(TODAY, "m", "a"), (TODAY, "m", "b"), (BEFORE, "m", "a"), (TODAY, "n", "a")], 1
    ):
        await store.add("here", batch, {UsagePlace(day, "k", model, node): ONE})
    rows = await store.rows(asked(UsageField.MODEL))
    assert [(row.model, row.day, row.usage.requests) for row in rows] == [("m", None, 3), ("n", None, 1)]
    assert rows[0].usage == KeyUsage(3, 0, 30, 15, 21)
    days = await store.rows(asked(UsageField.DAY, UsageField.NODE))
    assert [(row.day, row.node) for row in days] == [(BEFORE, "a"), (TODAY, "a"), (TODAY, "b")]
    assert [row.usage.requests for row in await store.rows(asked(since=TODAY, model="m"))] == [2]


async def test_a_key_is_named_and_asked_for_by_its_name_also_after_it_was_revoked(
    database: Database, store: UsageStore
) -> None:
    _, key = mint("website", KeyScope.INFERENCE, SeededEntropy(1), SystemClock().now())
    await SqlKeyStore(database).add_key(key)
    await store.add("here", 1, {UsagePlace(TODAY, key.id, "m", ""): ONE, UsagePlace(TODAY, "", "m", ""): ONE})
    await SqlKeyStore(database).revoke_key(key.id)
    rows = await store.rows(asked(UsageField.KEY))
    assert [(row.key, row.key_name) for row in rows] == [("", ""), (key.id, "website")]
    for named in ("website", key.id):
        assert [row.usage.requests for row in await store.rows(asked(key=named))] == [1]


async def test_a_batch_counts_once(store: UsageStore) -> None:
    for batch in (1, 1, 2, 2):
        await store.add("here", batch, {UsagePlace(TODAY, "k", "m", ""): ONE})
    await store.add("there", 1, {UsagePlace(TODAY, "k", "m", ""): ONE})
    assert [row.usage.requests for row in await store.rows(asked())] == [3]


async def test_frontends_add_to_the_same_row_at_once(database: Database, other_frontend: Database) -> None:
    async def add(to: Database, name: str) -> None:
        for batch in range(1, 6):
            await SqlUsageStore(to).add(name, batch, {UsagePlace(TODAY, "k", "m", ""): ONE})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add, database, "here")
        tasks.start_soon(add, other_frontend, "there")
    assert [row.usage.requests for row in await SqlUsageStore(database).rows(asked())] == [10]


async def test_days_that_are_long_over_are_forgotten(store: UsageStore) -> None:
    await store.add("here", 1, {UsagePlace(date(2020, 1, 1), "k", "m", ""): ONE})
    await store.add("here", 2, {UsagePlace(SystemClock().now().date(), "k", "m", ""): ONE})
    assert not (await store.rows(UsageQuery(date(2019, 1, 1), BEFORE, (UsageField.DAY,))))
