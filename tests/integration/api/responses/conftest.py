"""A gateway for each test, with one model `m` that answers in the terms that all APIs share."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from remuda.assembly.running import background
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.ids import FrontendId
from remuda.gateway.responses.keeper import ResponseKeeper
from remuda.store.database import Database, open_database
from remuda.store.responses import SqlResponseStore
from tests.integration.api.responses.scripts import says
from tests.support.plain_http import PLAIN
from tests.support.scripted_upstreams import Gateway, gateway, serving
from tests.support.shared_lines import SharedLines


def client_of(served: Gateway, key: str = "sk-none") -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(api_key=key, base_url=f"{served.url}/v1", http_client=http, max_retries=0)


async def _migrate(url: str) -> None:
    await (await open_database(url, clock=SystemClock())).close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "remuda.db"
    anyio.run(_migrate, f"sqlite:///{path}")
    return path


@pytest.fixture
async def database(migrated_file: Path, tmp_path: Path) -> AsyncIterator[Database]:
    shutil.copy(migrated_file, tmp_path / "remuda.db")
    opened = await open_database(f"sqlite:///{tmp_path}/remuda.db", clock=SystemClock())
    yield opened
    await opened.close()


@asynccontextmanager
async def keeping(
    database: Database, *, keys_required: bool = False, bus: SharedLines | None = None
) -> AsyncIterator[Gateway]:
    """A gateway that keeps responses there, as any number may."""
    lines = None if bus is None else (bus, FrontendId(SystemEntropy().uuid()))
    keeper = ResponseKeeper(SqlResponseStore(database), timedelta(days=1), 1 << 20, lines)
    new = gateway(responses=keeper, keys_required=keys_required)
    async with background(keeper.run), serving(new) as running:
        running.upstreams.typed = says("Hello", " there")
        yield running
        await running.running.close()


@pytest.fixture
def bus() -> SharedLines:
    """Between the frontends."""
    return SharedLines()


@pytest.fixture
async def served(database: Database, bus: SharedLines) -> AsyncIterator[Gateway]:
    async with keeping(database, bus=bus) as running:
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(served) as client:
        yield client


@pytest.fixture
async def http(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=20, verify=PLAIN) as client:
        yield client


@pytest.fixture
async def elsewhere(database: Database, served: Gateway, bus: SharedLines) -> AsyncIterator[AsyncOpenAI]:
    """A client of another frontend."""
    async with keeping(database, bus=bus) as other, client_of(other) as client:
        yield client
