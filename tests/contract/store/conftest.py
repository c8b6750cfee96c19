"""Each test runs once on SQLite and once on PostgreSQL, on a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.fleet.ports import FleetStore
from remuda.ops.ports import OpStore
from remuda.store.database import Database
from remuda.store.fleet import SqlFleetStore
from remuda.store.open import open_database
from remuda.store.ops import SqlOpStore
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data/remuda.db"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url, clock=SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
async def other_frontend(database_url: str, database: Database) -> AsyncIterator[Database]:
    """The same database, as a second process would have it open."""
    opened = await open_database(database_url, clock=SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def fleet_store(database: Database) -> FleetStore:
    return SqlFleetStore(database)


@pytest.fixture
def op_store(database: Database) -> OpStore:
    return SqlOpStore(database)
