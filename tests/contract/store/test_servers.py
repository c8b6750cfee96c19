"""ServerStore and BudgetStore."""

from dataclasses import replace

import anyio
import pytest

from remuda.core.errors import Conflict, NotFound
from remuda.core.prices import TokenPrice
from remuda.servers.model import Server, ServerKind, parse_url
from remuda.store.database import Database
from remuda.store.servers import SqlServerStore

pytestmark = pytest.mark.anyio

CLOUD = Server(
    "cloud",
    ServerKind.OPENAI,
    parse_url("https://api.example.com/v1"),
    "sk-secret",
    paid=True,
    prices={"*": TokenPrice(2_500_000_000, 10_000_000_000), "small": TokenPrice(1, 2)},
    budget=20_000_000_000,
    parallel=3,
    max_tokens=100,
)


@pytest.fixture
def store(database: Database) -> SqlServerStore:
    return SqlServerStore(database)


async def test_a_server_is_kept_as_it_was(store: SqlServerStore) -> None:
    added = await store.add_server(CLOUD)
    assert replace(added, change=0) == CLOUD
    assert await store.servers() == (added,)
    with pytest.raises(Conflict):
        await store.add_server(CLOUD)


async def test_an_edit_of_what_was_edited_meanwhile_is_refused(store: SqlServerStore) -> None:
    added = await store.add_server(CLOUD)
    edited = await store.edit_server(replace(added, budget=5))
    assert (edited.budget, edited.change > added.change) == (5, True)
    with pytest.raises(Conflict):
        await store.edit_server(replace(added, budget=6))
    await store.remove_server("cloud")
    for gone in (store.edit_server(edited), store.remove_server("cloud")):
        with pytest.raises(NotFound):
            await gone
    assert await store.servers() == ()


async def test_no_more_is_taken_than_the_budget_has(store: SqlServerStore) -> None:
    granted: list[int] = []

    async def take() -> None:
        granted.append(await store.take("cloud", "2026-11", 30, 100, 20))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(take)
    assert sum(granted) <= 100
    assert sorted(granted) == [0, 0, 0, 30, 30, 30]
    assert await store.take("cloud", "2026-12", 30, 100, 20) == 30


async def test_what_was_spent_and_given_back_is_counted(store: SqlServerStore) -> None:
    await store.take("cloud", "2026-11", 50, 100, 1)
    await store.settle("cloud", "2026-11", spent=12, given_back=38)
    (found,) = await store.spending("2026-11")
    assert (found.taken, found.spent) == (12, 12)
    assert await store.take("cloud", "2026-11", 100, 100, 1) == 88
