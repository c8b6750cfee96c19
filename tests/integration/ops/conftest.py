"""A real nats-server, a real database, and buses connected to the server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from remuda.bus.client import Bus
from remuda.store.database import Database, open_database
from tests.support.nats_servers import CLOCK, connected, plain_server


@dataclass(frozen=True, slots=True)
class Place:
    bus_url: str
    ours: Bus  # The frontend's connection,
    theirs: Bus  # and one for all scripted workers.
    database: Database
    database_url: str


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{tmp_path}/data/remuda.db"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(plain_server(tmp_path))
        ours = await stack.enter_async_context(connected(server.url))
        theirs = await stack.enter_async_context(connected(server.url))
        database = await open_database(url, clock=CLOCK)
        stack.push_async_callback(database.close)
        yield Place(server.url, ours, theirs, database, url)
