from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remuda.hubs.hubs import Hubs
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.hub import HubServer, hub_server
from tests.support.memory_bus import MemoryBroker
from tests.support.model_rig import ModelFrontend, impatient_hubs, model_frontend
from tests.support.virtual_ops import connected

Make = Callable[..., AbstractAsyncContextManager[ModelFrontend]]


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with hub_server() as server:
        yield server


@pytest.fixture
async def hubs() -> AsyncIterator[Hubs]:
    async with impatient_hubs() as opened:
        yield opened


@pytest.fixture
async def make(tmp_path: Path, hubs: Hubs) -> AsyncIterator[Make]:
    """Frontends of one fleet; each has the folder that it is given, below `tmp_path`."""
    clock = HostClock()
    database, _ = fresh_database(clock)
    async with connected(MemoryBroker(clock), clock, "front") as bus:

        def made(
            folder: str = "first", hubs: Hubs = hubs, **more: Any
        ) -> AbstractAsyncContextManager[ModelFrontend]:
            return partial(model_frontend, bus, database, tmp_path / folder, hubs)(**more)

        yield made


@pytest.fixture
async def frontend(make: Make) -> AsyncIterator[ModelFrontend]:
    async with make() as one:
        yield one
