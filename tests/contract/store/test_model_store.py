"""ModelStore: configured models come, are replaced and go."""

from dataclasses import replace

import anyio
import pytest

from remuda.core.errors import Conflict, NotFound
from remuda.scheduler.model import StoredModel
from remuda.store.database import Database
from remuda.store.replicas import SqlModelStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(database: Database) -> SqlModelStore:
    return SqlModelStore(database)


def a_model(name: str = "qwen-2.5", text: str = "name: qwen\n") -> StoredModel:
    return StoredModel(name, text, revision="abc", origin="added")


async def test_model_is_read_back_as_it_was_given(store: SqlModelStore) -> None:
    got = await store.put_model(a_model())
    assert got.updated_at is not None
    assert replace(got, updated_at=None) == a_model()
    assert await store.models() == [got]


async def test_model_of_the_same_name_replaces_the_one_before(store: SqlModelStore) -> None:
    await store.put_model(a_model("b"))
    await store.put_model(a_model("a"))
    newer = await store.put_model(replace(a_model("b"), text="name: other\n", revision="def", origin="f"))
    assert [model.name for model in await store.models()] == ["a", "b"]
    assert (await store.models())[1] == newer


async def test_name_that_is_anothers_on_a_subject_is_refused(store: SqlModelStore) -> None:
    await store.put_model(a_model("qwen-2.5"))
    with pytest.raises(Conflict, match=r"'qwen-2-5'.*'qwen-2\.5'"):
        await store.put_model(a_model("qwen-2-5"))
    assert [model.name for model in await store.models()] == ["qwen-2.5"]


async def test_removed_model_is_gone_and_its_name_free(store: SqlModelStore) -> None:
    put = await store.put_model(a_model("qwen-2.5"))
    assert await store.remove_model("qwen-2.5") == put
    assert await store.models() == []
    with pytest.raises(NotFound, match=r"qwen-2\.5"):
        await store.remove_model("qwen-2.5")
    await store.put_model(a_model("qwen-2-5"))


async def test_model_put_by_two_frontends_at_once_is_there_once(
    store: SqlModelStore, other_frontend: Database
) -> None:
    both = (store, SqlModelStore(other_frontend))

    async def put(number: int) -> None:
        await both[number % 2].put_model(a_model(text=str(number)))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(put, number)
    assert len(await store.models()) == 1
