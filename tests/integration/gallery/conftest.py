"""Loopback servers and sources on a clock that stands still until a test moves it."""

import socket
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.gallery.fetch import Fetcher, FetchTimeouts, open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.sources import Cache, Sources
from tests.integration.gallery.servers import Server, serving
from tests.support.clocks import HandClock

SHORT = FetchTimeouts(
    connect=timedelta(seconds=5), idle=timedelta(milliseconds=300), whole=timedelta(milliseconds=900)
)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def mirror() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def fetcher(server: Server) -> AsyncIterator[Fetcher]:
    """Its GitHub is the test's server."""
    async with open_fetcher(github_raw=server.address) as fetcher:
        yield fetcher


@pytest.fixture
async def hasty_fetcher(server: Server) -> AsyncIterator[Fetcher]:
    """Gives up within a second, as a busy machine may make any server seem to deserve."""
    async with open_fetcher(timeouts=SHORT, github_raw=server.address) as fetcher:
        yield fetcher


MakeSources = Callable[..., Sources]


@pytest.fixture
def sources(fetcher: Fetcher, clock: HandClock, tmp_path: Path) -> MakeSources:
    """Sources of the given galleries. Each call stands for a new process: it shares only the disk."""

    def make(*galleries: Gallery) -> Sources:
        return Sources(galleries, fetcher=fetcher, cache=Cache(tmp_path / "galleries"), clock=clock)

    return make


@pytest.fixture
def free_address() -> str:
    """Where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
