"""RateStore."""

import pytest

from remuda.core.ids import NodeId
from remuda.fleet.ports import FleetStore
from remuda.scheduler.measured_speed import MeasuredRate, Rate, RateKey, RateStore
from remuda.scheduler.model import ADDED, StoredModel
from remuda.store.database import Database
from remuda.store.measurements import SqlRateStore
from remuda.store.replicas import SqlModelStore
from tests.contract.store.builders import registered

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database: Database, fleet_store: FleetStore) -> RateStore:
    await SqlModelStore(database).put_model(StoredModel("qwen", "name: qwen\n", "r1", ADDED))
    await registered(fleet_store, "alpha")
    return SqlRateStore(database)


def rate(kind: Rate, per_s: float, node: str = "alpha", model: str = "qwen") -> MeasuredRate:
    return MeasuredRate(RateKey(kind, NodeId(f"id-of-{node}"), model), per_s, "llama-cpp", 4 << 30)


async def test_the_last_word_on_each_kind_stays(store: RateStore) -> None:
    await store.keep([rate(Rate.TOKENS, 50.5), rate(Rate.LOAD, 1e9)])
    await store.keep([rate(Rate.TOKENS, 40.25)])
    kept = sorted(await store.rates(), key=lambda one: one.key)
    assert kept == [rate(Rate.LOAD, 1e9), rate(Rate.TOKENS, 40.25)]


async def test_of_nodes_and_models_that_are_not_there_nothing_is_told(store: RateStore) -> None:
    await store.keep([rate(Rate.TOKENS, 1, node="gone"), rate(Rate.TOKENS, 1, model="gone")])
    assert await store.rates() == []


async def test_a_backend_that_was_installed_by_itself_goes_by_its_own_name(store: RateStore) -> None:
    by_itself = rate(Rate.BACKEND, 0.1, model="llama-cpp")
    await store.keep([by_itself, rate(Rate.BACKEND, 0.1, node="gone", model="llama-cpp")])
    await store.keep([rate(Rate.LOAD, 1e9)])
    assert sorted(await store.rates(), key=lambda one: one.key) == [by_itself, rate(Rate.LOAD, 1e9)]
