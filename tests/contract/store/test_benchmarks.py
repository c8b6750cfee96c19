"""BenchmarkStore."""

from dataclasses import replace

import pytest

from remuda.scheduler.benchmarks import KEPT_PER_PLACE, BenchmarkStore, Measured
from remuda.store.benchmarks import SqlBenchmarkStore
from remuda.store.database import Database

pytestmark = pytest.mark.anyio

MEASURED = Measured("qwen", "attic", 4, 8, 1, 120, 64, 35.5, 80.25, 210.75, 900.125)


@pytest.fixture
def store(database: Database) -> BenchmarkStore:
    return SqlBenchmarkStore(database)


async def test_what_was_measured_is_kept_as_it_was(store: BenchmarkStore) -> None:
    (kept,) = await store.keep([MEASURED], "r1", "llama-cpp")
    assert (kept.measured, kept.revision, kept.backend) == (MEASURED, "r1", "llama-cpp")
    assert await store.benchmarks() == [kept]


async def test_the_newest_comes_first_and_models_are_told_apart(store: BenchmarkStore) -> None:
    await store.keep([MEASURED, replace(MEASURED, streams=8)], "r1", "llama-cpp")
    await store.keep([replace(MEASURED, model="bge")], "r1", "llama-cpp")
    assert [one.measured.streams for one in await store.benchmarks("qwen")] == [8, 4]
    assert [one.measured.model for one in await store.benchmarks()] == ["bge", "qwen", "qwen"]
    assert await store.benchmarks("none") == []


async def test_only_so_many_of_one_place_stay(store: BenchmarkStore) -> None:
    await store.keep([replace(MEASURED, node="spark")], "r1", "llama-cpp")
    await store.keep(
        [replace(MEASURED, requests=number + 1) for number in range(KEPT_PER_PLACE + 5)], "r1", "llama-cpp"
    )
    kept = await store.benchmarks("qwen")
    requests = [one.measured.requests for one in kept if one.measured.node == "attic"]
    assert requests == list(range(KEPT_PER_PLACE + 5, 5, -1))
    assert len(kept) == KEPT_PER_PLACE + 1
