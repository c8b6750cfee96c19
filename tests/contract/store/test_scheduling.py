"""SchedulingStore, and how it goes with models."""

from dataclasses import replace
from datetime import timedelta

import pytest

from remuda.core.ids import FrontendId
from remuda.scheduler.model import ADDED, Renaming, StoredModel
from remuda.scheduler.scheduling import Cooldown, SchedulingTerms
from remuda.store.database import Database
from remuda.store.replicas import SqlModelStore
from remuda.store.scheduling import SqlSchedulingStore

pytestmark = pytest.mark.anyio

TERMS = SchedulingTerms(
    min_replicas=1,
    max_replicas=3,
    selector={"gpu.vendor": "nvidia"},
    pinned=True,
    keep_alive=timedelta(minutes=5),
    route_policy="round_robin",
    balance_abs_threshold=2,
    balance_rel_threshold=1.5,
    min_prefix_match=0.3,
)
QWEN = StoredModel("qwen", "name: qwen\n", "r1", ADDED, kept_by=FrontendId("f"))


@pytest.fixture
def store(database: Database) -> SqlSchedulingStore:
    return SqlSchedulingStore(database)


@pytest.fixture
def models(database: Database) -> SqlModelStore:
    return SqlModelStore(database)


async def test_what_is_declared_is_kept_as_it_was(store: SqlSchedulingStore) -> None:
    put = await store.put_scheduling("qwen", TERMS)
    assert (put.model, put.terms) == ("qwen", TERMS)
    again = await store.put_scheduling("qwen", replace(TERMS, min_replicas=2))
    assert (again.id, again.created_at) == (put.id, put.created_at)
    assert await store.scheduling() == [again]


async def test_withdrawing_twice_finds_nothing(store: SqlSchedulingStore) -> None:
    await store.put_scheduling("qwen", TERMS)
    assert await store.remove_scheduling("qwen")
    assert not await store.remove_scheduling("qwen")
    assert await store.scheduling() == []


async def test_models_are_read_with_what_is_declared_for_them(
    store: SqlSchedulingStore, models: SqlModelStore
) -> None:
    await models.put_model(QWEN)
    assert [one.terms for one in await models.models()] == [None]
    await store.put_scheduling("qwen", TERMS)
    await store.put_scheduling("later", TERMS)
    assert [(one.name, one.terms) for one in await models.models()] == [("qwen", TERMS)]


async def test_renamed_model_keeps_what_is_declared_and_a_removed_one_does_not(
    store: SqlSchedulingStore, models: SqlModelStore
) -> None:
    await models.put_model(QWEN)
    await store.put_scheduling("qwen", TERMS)
    [before] = await models.models()
    await models.rename_model(Renaming(before, replace(before, name="qwen3", text="name: qwen3\n")))
    assert [one.model for one in await store.scheduling()] == ["qwen3"]
    await models.remove_model("qwen3")
    assert await store.scheduling() == []


async def test_cooldown_lasts_until_another_wish(store: SqlSchedulingStore) -> None:
    put = await store.put_scheduling("qwen", TERMS)
    assert put.created_at is not None
    cooldown = Cooldown(3, put.created_at, "f1", "gpu-1: needs more")
    await store.put_cooldown("qwen", replace(cooldown, attempts=2))
    await store.put_cooldown("qwen", cooldown)
    assert await store.cooldowns() == {"qwen": cooldown}
    assert [one.cooldown for one in await store.scheduling()] == [cooldown]
    await store.put_scheduling("qwen", TERMS)
    assert await store.cooldowns() == {}
    await store.put_cooldown("qwen", cooldown)
    await store.put_cooldown("qwen", None)
    assert await store.cooldowns() == {}
