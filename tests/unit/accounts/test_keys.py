"""Keys in memory follow the store, whatever overtakes what."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.accounts.keys import ApiKey, KeyRing, KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import StoreUnusable
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio


class SlowStore:
    """Keys in a list; reading them takes as long as the test says."""

    def __init__(self) -> None:
        self.held: list[ApiKey] = []
        self.used: list[frozenset[str]] = []
        self.reading = anyio.Event()
        self.go_on = anyio.Event()
        self.go_on.set()

    async def keys(self) -> Sequence[ApiKey]:
        read = list(self.held)
        self.reading.set()
        await self.go_on.wait()
        return read

    async def add_key(self, key: ApiKey) -> None:
        self.held.append(key)

    async def edit_key(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        found = next(key for key in self.held if key.id == key_id)
        edited = change(found)
        self.held[self.held.index(found)] = edited
        return edited

    async def keys_used(self, key_ids: Collection[str]) -> None:
        self.used.append(frozenset(key_ids))

    async def revoke_key(self, key_id: str) -> ApiKey:
        found = next(key for key in self.held if key.id == key_id)
        self.held.remove(found)
        return found


def ring(store: SlowStore) -> KeyRing:
    return KeyRing(store, SystemClock(), SystemEntropy())


async def test_a_key_works_from_its_making_to_its_revocation() -> None:
    keys = ring(SlowStore())
    secret, made = await keys.create("ann", KeyScope.INFERENCE)
    assert keys.holder(secret) == made
    assert list(keys.listed()) == [made]
    await keys.revoke(made.id)
    assert keys.holder(secret) is None


async def test_a_refreshed_ring_knows_the_keys_of_others_by_their_digest() -> None:
    store = SlowStore()
    secret, made = await ring(store).create("ann", KeyScope.INFERENCE, ("qwen",))
    another = ring(store)
    assert another.holder(secret) is None
    await another.refresh()
    assert another.holder(secret) == made


async def test_a_slow_refresh_does_not_bring_back_a_revoked_key() -> None:
    store = SlowStore()
    keys = ring(store)
    secret, made = await keys.create("ann", KeyScope.ADMIN)
    store.go_on = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keys.refresh)
        await store.reading.wait()
        tasks.start_soon(keys.revoke, made.id)
        await anyio.wait_all_tasks_blocked()
        store.go_on.set()
    assert keys.holder(secret) is None


async def test_keys_known_so_far_work_while_the_store_does_not() -> None:
    class BrokenStore(SlowStore):
        async def revoke_key(self, key_id: str) -> ApiKey:
            raise StoreUnusable("gone")

    keys = ring(BrokenStore())
    secret, made = await keys.create("ann", KeyScope.ADMIN)
    with pytest.raises(StoreUnusable):
        await keys.revoke(made.id)
    assert keys.holder(secret) == made


async def test_a_key_that_expires_stops_by_itself() -> None:
    clock = HandClock()
    keys = KeyRing(SlowStore(), clock, SystemEntropy())
    over = clock.now() + timedelta(minutes=1)
    secret, made = await keys.create("guest", KeyScope.INFERENCE, terms=KeyTerms(expires_at=over))
    changed = keys.changed
    assert (keys.holder(secret), keys.trouble(secret)) == (made, "")
    clock.advance(timedelta(minutes=1))
    assert (keys.holder(secret), keys.by_id(made.id)) == (None, None), "also before the next refresh"
    await keys.refresh()
    assert (keys.holder(secret), keys.by_id(made.id)) == (None, None)
    assert (keys.trouble(secret), changed.is_set()) == ("the key 'guest' has expired", True)
    assert "remuda keys edit guest --expires" in keys.remedy(secret)


async def test_a_paused_key_is_listed_and_opens_nothing() -> None:
    keys = ring(SlowStore())
    secret, made = await keys.create("ann", KeyScope.INFERENCE)
    paused = await keys.edit(made.id, lambda key: replace(key, paused=True))
    assert (keys.holder(secret), list(keys.listed())) == (None, [paused])
    assert keys.trouble(secret) == "the key 'ann' is paused"
    assert keys.remedy(secret) == "an admin resumes it with: remuda keys resume ann"
    assert keys.trouble("rmd_wrong") == keys.remedy("rmd_wrong") == ""
    await keys.edit(made.id, lambda key: replace(key, paused=False))
    assert keys.holder(secret) == made


async def test_which_keys_were_used_is_written_down_once() -> None:
    store = SlowStore()
    keys = ring(store)
    secret, made = await keys.create("ann", KeyScope.INFERENCE)
    keys.holder(keys.local_secret)
    await keys.note_used()
    keys.holder(secret)
    keys.holder(secret)
    await keys.note_used()
    await keys.note_used()
    assert store.used == [frozenset({made.id})]


async def test_which_keys_were_used_is_written_down_at_the_end() -> None:
    store = SlowStore()
    keys = ring(store)
    secret, made = await keys.create("ann", KeyScope.INFERENCE)
    async with anyio.create_task_group() as tasks:
        await tasks.start(keys.run)
        keys.holder(secret)
        tasks.cancel_scope.cancel()
    assert store.used == [frozenset({made.id})]


async def test_this_processes_own_key_is_an_admins_and_is_not_listed() -> None:
    keys = ring(SlowStore())
    holder = keys.holder(keys.local_secret)
    assert holder is not None
    assert (holder.scope, list(keys.listed())) == (KeyScope.ADMIN, [])


@pytest.mark.parametrize("secret", ["", "wrong", "rmd_", "\x00"])
async def test_a_stranger_holds_no_key(secret: str) -> None:
    assert ring(SlowStore()).holder(secret) is None
