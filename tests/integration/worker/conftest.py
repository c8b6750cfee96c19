"""A bus and a frontend to join."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import PlainServer, plain_server


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[PlainServer]:
    async with plain_server(tmp_path) as server:
        yield server


@pytest.fixture
async def frontend(nats: PlainServer) -> AsyncIterator[LocalAiFrontend]:
    """It also tells where the bus is, which LocalAI's leaves to the worker's settings."""
    async with LocalAiFrontend() as peer:
        peer.extra_reply = {"nats_url": nats.url}
        yield peer
