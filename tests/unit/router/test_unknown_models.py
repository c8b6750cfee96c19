"""A model that was added on another frontend a moment ago is looked for before it is called unknown."""

import anyio
import pytest

from remuda.core import limits
from remuda.core.clock import SystemClock
from remuda.core.errors import StoreUnusable, Unavailable
from remuda.router.errors import Overloaded
from remuda.router.unknown_models import UnknownModels

pytestmark = pytest.mark.anyio


class Store:
    def __init__(self) -> None:
        self.looks = 0
        self.fails = ""
        self.answers = anyio.Event()
        self.answers.set()

    async def refresh(self) -> None:
        self.looks += 1
        await self.answers.wait()
        if self.fails:
            raise StoreUnusable(self.fails)


async def test_the_store_is_looked_at_for_whoever_asks() -> None:
    store = Store()
    unknown = UnknownModels(store.refresh, SystemClock())
    await unknown.look()
    await unknown.look()
    assert store.looks == 2


async def test_a_store_that_cannot_say_is_no_proof_that_there_is_no_such_model() -> None:
    store = Store()
    store.fails = "the disk is full"
    with pytest.raises(Unavailable, match="cannot look it up now: the disk is full"):
        await UnknownModels(store.refresh, SystemClock()).look()


async def test_only_so_many_wait() -> None:
    store = Store()
    store.answers = anyio.Event()
    unknown = UnknownModels(store.refresh, SystemClock())
    async with anyio.create_task_group() as tasks:
        for _ in range(limits.UNKNOWN_MODELS_WAITING_MAX):
            tasks.start_soon(unknown.look)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await unknown.look()
        store.answers.set()
