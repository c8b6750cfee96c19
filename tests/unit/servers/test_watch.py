"""Servers that were changed here count at once, whatever else reads them at that moment."""

from typing import cast

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.router.live_table import Tables
from remuda.servers.model import Server, ServerKind, ServerStore, parse_url
from remuda.servers.probing import Prober
from remuda.servers.watch import ServerWatch

pytestmark = pytest.mark.anyio


class SlowStore:
    """Its first reader is answered with what was there when it asked, and only when `answering` is set."""

    def __init__(self, *servers: Server) -> None:
        self.there = servers
        self.asked = anyio.Event()
        self.answering = anyio.Event()

    async def servers(self) -> tuple[Server, ...]:
        read = self.there
        if not self.asked.is_set():
            self.asked.set()
            await self.answering.wait()
        return read


async def unchanged() -> None:
    return None


async def test_an_older_reading_does_not_bring_back_what_was_removed() -> None:
    store = SlowStore(Server("nas", ServerKind.OPENAI, parse_url("http://nas:1/v1")))
    watch = ServerWatch(cast(ServerStore, store), Prober(), Tables(), SystemClock(), unchanged)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.changed)
        await store.asked.wait()
        store.there = ()
        tasks.start_soon(watch.changed)
        await anyio.wait_all_tasks_blocked()
        store.answering.set()
    assert watch.adopted() == []
