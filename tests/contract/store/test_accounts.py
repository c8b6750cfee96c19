"""KeyStore and SecretStore."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import anyio
import pytest

from remuda.accounts.keys import ApiKey, KeyScope, KeyStore, SecretStore, mint
from remuda.accounts.terms import KeyTerms
from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Conflict, Invalid, NotFound, RemudaError
from remuda.store.accounts import SqlKeyStore, SqlSecretStore
from remuda.store.database import Database
from remuda.store.schema import api_keys
from tests.contract.store.builders import row_count

pytestmark = pytest.mark.anyio


@pytest.fixture
def keys(database: Database) -> KeyStore:
    return SqlKeyStore(database)


@pytest.fixture
def secrets(database: Database) -> SecretStore:
    return SqlSecretStore(database)


def a_key(name: str, seed: int = 1, scope: KeyScope = KeyScope.INFERENCE) -> ApiKey:
    return mint(name, scope, SeededEntropy(seed), SystemClock().now())[1]


async def test_keys_in_force_are_listed_by_name(keys: KeyStore) -> None:
    second, first = a_key("zoe", 1, KeyScope.ADMIN), a_key("ada", 2)
    await keys.add_key(second)
    await keys.add_key(first)
    assert list(await keys.keys()) == [first, second]


async def test_a_key_keeps_the_models_it_is_for(keys: KeyStore) -> None:
    _, key = mint("app", KeyScope.INFERENCE, SeededEntropy(1), SystemClock().now(), ("qwen", "org/bge"))
    await keys.add_key(key)
    assert list(await keys.keys()) == [key]


async def test_a_key_is_changed_and_keeps_what_it_may_take(keys: KeyStore) -> None:
    terms = KeyTerms(60, 20_000, 2, 10**9, 10**12, SystemClock().now() + timedelta(days=1), 3, True, True)
    _, key = mint("app", KeyScope.INFERENCE, SeededEntropy(1), SystemClock().now(), terms=terms)
    await keys.add_key(key)
    assert list(await keys.keys()) == [key]
    changed = await keys.edit_key(
        key.id, lambda it: replace(it, models=("qwen",), paused=True, terms=replace(it.terms, weight=1))
    )
    assert changed == replace(key, models=("qwen",), paused=True, terms=replace(terms, weight=1))
    assert list(await keys.keys()) == [changed]
    with pytest.raises(NotFound):
        await keys.edit_key("unknown", lambda it: it)


async def test_a_change_that_is_refused_changes_nothing(keys: KeyStore) -> None:
    def refuse(key: ApiKey) -> ApiKey:
        raise Invalid("no")

    key = a_key("ada")
    await keys.add_key(key)
    with pytest.raises(Invalid):
        await keys.edit_key(key.id, refuse)
    assert list(await keys.keys()) == [key]


async def test_when_keys_were_used_is_kept(keys: KeyStore) -> None:
    used, idle = a_key("used", 1), a_key("idle", 2)
    await keys.add_key(used)
    await keys.add_key(idle)
    await keys.keys_used([used.id, "unknown"])
    found = {key.name: key.last_used_at for key in await keys.keys()}
    assert found["idle"] is None
    assert found["used"] is not None
    assert abs(found["used"] - SystemClock().now()) < timedelta(minutes=1)


async def test_name_in_force_is_refused(keys: KeyStore) -> None:
    await keys.add_key(a_key("ada", 1))
    with pytest.raises(Conflict, match="'ada'"):
        await keys.add_key(a_key("ada", 2))


async def test_revoked_key_is_gone_and_its_name_free(database: Database, keys: KeyStore) -> None:
    key, successor = a_key("ada", 1), a_key("ada", 2)
    await keys.add_key(key)
    assert await keys.revoke_key(key.id) == key
    await keys.add_key(successor)
    assert list(await keys.keys()) == [successor]
    assert await row_count(database, api_keys) == 2


async def test_key_is_revoked_once(keys: KeyStore) -> None:
    key = a_key("ada")
    await keys.add_key(key)
    await keys.revoke_key(key.id)
    for key_id in (key.id, "unknown"):
        with pytest.raises(NotFound):
            await keys.revoke_key(key_id)


async def test_of_keys_added_at_once_under_one_name_one_is_taken(
    database: Database, other_frontend: Database
) -> None:
    refused: list[RemudaError] = []

    async def add(to: Database, seed: int) -> None:
        try:
            await SqlKeyStore(to).add_key(a_key("ada", seed))
        except Conflict as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for seed in range(10):
            tasks.start_soon(add, database if seed % 2 else other_frontend, seed)
    assert len(await SqlKeyStore(database).keys()) == 1
    assert len(refused) == 9


async def test_secret_is_made_once(secrets: SecretStore) -> None:
    assert await secrets.secret("token", lambda: "first") == "first"
    assert await secrets.secret("token", lambda: "second") == "first"
    assert await secrets.secret("other", lambda: "third") == "third"


async def test_all_who_ask_at_once_get_the_same_secret(database: Database, other_frontend: Database) -> None:
    got: list[str] = []

    async def ask(of: Database, number: int) -> None:
        got.append(await SqlSecretStore(of).secret("token", partial("made by {}".format, number)))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(ask, database if number % 2 else other_frontend, number)
    assert len(got) == 20
    assert len(set(got)) == 1
