"""Each test runs once on the bundled nats-server and once on the broker in memory."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from remuda.bus.auth import AuthSource, account_user, issued
from remuda.bus.client import Bus
from remuda.bus.credentials import BusUser, ClusterKeys
from remuda.bus.link import MakeLink
from remuda.bus.nats import NatsLink
from remuda.core.ids import NodeId
from remuda.wire import subjects
from tests.support.memory_bus import MemoryBroker
from tests.support.nats_servers import CLOCK, ENTROPY, QUICK_BACKOFF, operator_server

KEYS = ClusterKeys.create(ENTROPY)


@dataclass(frozen=True, slots=True)
class Served:
    """A bus server, whichever it is."""

    url: str
    make_link: MakeLink
    revoke: Callable[[Mapping[str, datetime]], Awaitable[None]]
    hang_up: Callable[[], None]  # On everybody; soon it is there again.

    @asynccontextmanager
    async def connecting(self, auth: AuthSource) -> AsyncIterator[Bus]:
        bus = Bus(
            self.url,
            auth,
            name="test",
            backoff=QUICK_BACKOFF,
            entropy=ENTROPY,
            clock=CLOCK,
            make_link=self.make_link,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(bus.run)
            yield bus
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def connected(self, auth: AuthSource) -> AsyncIterator[Bus]:
        async with self.connecting(auth) as bus:
            with anyio.fail_after(20):
                await bus.wait_connected()
            yield bus

    @asynccontextmanager
    async def worker(self, node: NodeId) -> AsyncIterator[Bus]:
        minted = mint(node)
        async with self.connected(issued(lambda: minted)) as bus:
            yield bus

    @asynccontextmanager
    async def frontend(self) -> AsyncIterator[Bus]:
        async with self.connected(account_user(KEYS.account, "frontend", CLOCK)) as bus:
            yield bus


def mint(node: NodeId, ttl: timedelta = timedelta(hours=1)) -> BusUser:
    allowed = subjects.permissions("backend", node)
    return KEYS.account.mint_worker(
        "backend", node, subscribe=allowed.subscribe, publish=allowed.publish, now=CLOCK.now(), ttl=ttl
    )


@pytest.fixture(params=["nats", "memory"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    if request.param == "memory":
        broker = MemoryBroker(CLOCK, jwt_demanded=True)

        def hang_up() -> None:
            broker.stop()
            broker.start()

        yield Served("nats://nowhere:4222", broker.link, broker.revoke, hang_up)
        return
    async with operator_server(tmp_path, KEYS) as server:

        def kill() -> None:
            os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGKILL)

        async def revoke(keys: Mapping[str, datetime]) -> None:
            await server.revoke(dict(keys))

        yield Served(server.url, NatsLink, revoke, kill)
