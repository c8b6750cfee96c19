"""Each test runs once on SQLite and once on PostgreSQL, on a database that was migrated once for all tests of
this process: a copy of the file, or the one on the server, put back after each of them."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.fleet.ports import FleetStore
from remuda.ops.ports import OpStore
from remuda.store.database import Database, open_database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops import SqlOpStore
from tests.support.postgres import PostgresServer, ReusedDatabase


async def _migrate(url: str) -> None:
    await (await open_database(url, clock=SystemClock())).close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "remuda.db"
    anyio.run(_migrate, f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def reused_database(postgres: PostgresServer) -> ReusedDatabase:
    url = postgres.new_database()
    anyio.run(_migrate, url)
    return ReusedDatabase(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def empty_database_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Nobody has migrated it."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path}/data/remuda.db"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_database()


@pytest.fixture
def database_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if dialect == "sqlite":
        file = tmp_path / "data/remuda.db"
        file.parent.mkdir(mode=0o700)
        shutil.copy(request.getfixturevalue("migrated_file"), file)
        yield f"sqlite:///{file}"
        return
    reused: ReusedDatabase = request.getfixturevalue("reused_database")
    yield reused.url
    reused.restore()


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
