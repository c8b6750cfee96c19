"""A bus, and a worker on it that runs what it is told to."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.running.rig import Rig, Yard, working
from tests.support.nats_servers import PlainServer, plain_server


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[PlainServer]:
    async with plain_server(tmp_path) as server:
        yield server


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path / "worker")


@pytest.fixture
async def rig(yard: Yard, nats: PlainServer) -> AsyncIterator[Rig]:
    async with working(yard, nats) as started:
        yield started
