"""MemoryStore."""

import pytest

from remuda.models.memory import MemoryUse
from remuda.scheduler.measured_memory import MeasuredMemory, MemoryKey, MemoryStore
from remuda.scheduler.model import ADDED, StoredModel
from remuda.store.database import Database
from remuda.store.measurements import KEPT_PER_MODEL, SqlMemoryStore
from remuda.store.replicas import SqlModelStore

pytestmark = pytest.mark.anyio

KEY = MemoryKey("qwen", "r1", "sha256:1", "nvidia 9.0")


@pytest.fixture
async def store(database: Database) -> MemoryStore:
    for name in ("qwen", "bge"):
        await SqlModelStore(database).put_model(StoredModel(name, f"name: {name}\n", "r1", ADDED))
    return SqlMemoryStore(database)


async def test_the_most_that_was_seen_of_each_memory_stays(store: MemoryStore) -> None:
    await store.keep([MeasuredMemory(KEY, MemoryUse(5 << 30, 1 << 30))])
    await store.keep([MeasuredMemory(KEY, MemoryUse(4 << 30, 2 << 30))])
    assert await store.measured() == [MeasuredMemory(KEY, MemoryUse(5 << 30, 2 << 30))]


async def test_each_kind_is_kept_by_itself(store: MemoryStore) -> None:
    kinds = [KEY, KEY._replace(hardware=""), KEY._replace(revision="r2"), KEY._replace(model="bge")]
    kept = [MeasuredMemory(key, MemoryUse(number, number)) for number, key in enumerate(kinds, 1)]
    await store.keep(kept)
    assert sorted(await store.measured(), key=lambda one: one.use) == kept


async def test_of_a_model_that_is_removed_nothing_is_told(store: MemoryStore, database: Database) -> None:
    await store.keep([MeasuredMemory(KEY, MemoryUse(1, 1))])
    await SqlModelStore(database).remove_model("qwen")
    assert await store.measured() == []


async def test_only_so_many_kinds_of_one_model_stay(store: MemoryStore) -> None:
    other = MeasuredMemory(KEY._replace(model="bge"), MemoryUse(1, 1))
    await store.keep([other])
    many = range(KEPT_PER_MODEL + 7)
    await store.keep([MeasuredMemory(KEY._replace(revision=f"{n:04}"), MemoryUse(n, n)) for n in many])
    kept = await store.measured()
    assert len(kept) == KEPT_PER_MODEL + 1
    assert other in kept
