"""From a URL to a database of the right schema, or to a refusal that says what to change."""

import os
import re
import sqlite3
import stat
import traceback
from datetime import datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError
from tools.write_sqlite_schema import dump, migrated

from remuda.core.clock import SystemClock
from remuda.core.errors import Misconfigured, StoreUnusable
from remuda.store import new_sqlite, partial_indexes
from remuda.store.database import Database, open_database
from remuda.store.database_url import ACCEPTED, mask_url
from remuda.store.fleet import SqlFleetStore
from remuda.store.schema import SCHEMA_VERSION, schema_info, secrets
from tests.contract.store.builders import registered
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.anyio

PASSWORD = "hunter2"


async def reopened(url: str) -> Database:
    return await open_database(url, clock=SystemClock())


async def pretend_newer(database: Database, *, min_compatible: int) -> None:
    newer = update(schema_info).values(version=SCHEMA_VERSION + 6, min_compatible_version=min_compatible)
    await database.transact(lambda connection, now: connection.execute(newer))


async def test_migrations_lead_to_the_schema_that_statements_use(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), partial_indexes.metadata))

    assert await database.read(lambda connection, now: differences(connection)) == []


async def test_new_sqlite_file_is_what_migrations_make(tmp_path: Path) -> None:
    """Where it differs: uv run --group dev python -m tools.write_sqlite_schema"""
    path = tmp_path / "data" / "remuda.db"
    database = await reopened(f"sqlite:///{path}")
    await database.close()
    assert new_sqlite.FILE.read_text().startswith(f"{new_sqlite.first_line(SCHEMA_VERSION)}\n")
    assert dump(path) == migrated()


async def test_sqlite_file_with_tables_of_others_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "remuda.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE of_others (id INTEGER)")
    connection.close()
    database = await reopened(f"sqlite:///{path}")
    try:
        node = await registered(SqlFleetStore(database))
        assert (await SqlFleetStore(database).fleet()).nodes == [node]
    finally:
        await database.close()


async def test_what_was_written_is_there_after_opening_again(database_url: str, database: Database) -> None:
    node = await registered(SqlFleetStore(database))
    again = await reopened(database_url)
    try:
        assert (await SqlFleetStore(again).fleet()).nodes == [node]
    finally:
        await again.close()


async def test_database_of_an_incompatible_newer_release_is_refused(
    database_url: str, database: Database
) -> None:
    await pretend_newer(database, min_compatible=SCHEMA_VERSION + 1)
    with pytest.raises(Misconfigured) as refused:
        await reopened(database_url)
    text = str(refused.value)
    assert database.name in text
    assert f"version is {SCHEMA_VERSION + 6}" in text
    assert f"this release has {SCHEMA_VERSION}" in text
    assert "install the newer release" in text


async def test_database_of_a_compatible_newer_release_is_used_as_it_is(
    database_url: str, database: Database
) -> None:
    await pretend_newer(database, min_compatible=SCHEMA_VERSION)
    again = await reopened(database_url)
    try:
        await registered(SqlFleetStore(again))
        version = await again.read(lambda connection, now: connection.scalar(select(schema_info.c.version)))
        assert version == SCHEMA_VERSION + 6
    finally:
        await again.close()


async def test_sqlite_file_and_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "remuda.db"
    database = await reopened(f"sqlite:///{file}")
    try:
        await registered(SqlFleetStore(database))
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in (file.parent, *file.parent.iterdir())
        }
    finally:
        await database.close()
    assert modes.pop("new") == 0o700
    assert modes == {"remuda.db": 0o600, "remuda.db-wal": 0o600, "remuda.db-shm": 0o600}


async def test_path_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match=r"file/remuda\.db"):
        await reopened(f"sqlite:///{tmp_path}/file/remuda.db")


async def test_file_that_is_no_database_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "remuda.db").write_bytes(os.urandom(8192))
    with pytest.raises(StoreUnusable, match="not a database"):
        await reopened(f"sqlite:///{tmp_path}/remuda.db")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "remuda.db",
        "sqlite://",
        "sqlite:///relative.db",
        "sqlite:///:memory:",
        "sqlite:////tmp/remuda.db?mode=ro",
        f"mysql://ada:{PASSWORD}@localhost/remuda",
        f"postgresql://ada:{PASSWORD}@localhost:port/remuda",
        f"postgresql://ada:p@{PASSWORD}@localhost/remuda",
    ],
)
async def test_other_urls_are_refused_with_the_accepted_forms(url: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(ACCEPTED)) as refused:
        await reopened(url)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
async def test_usual_spellings_of_postgresql_are_accepted(postgres: PostgresServer, scheme: str) -> None:
    url = postgres.new_database().replace("postgresql", scheme, 1)
    database = await reopened(url)
    try:
        await database.ping()
        assert postgres.password not in database.name
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://ada:hunter2@db.example:5432/remuda", "postgresql://ada:***@db.example:5432/remuda"),
        ("postgresql://ada:hun@ter2@db/remuda", "postgresql://ada:***@db/remuda"),
        ("postgresql://ada:hun/ter2@db/remuda", "postgresql://ada:***@db/remuda"),
        (
            "postgresql://db/remuda?user=ada&password=hunter2&sslmode=require",
            "postgresql://db/remuda?user=ada&password=***&sslmode=require",
        ),
        ("postgresql://ada@db/remuda", "postgresql://ada@db/remuda"),
        ("sqlite:////home/ada/remuda.db", "sqlite:////home/ada/remuda.db"),
    ],
)
def test_masked_url_keeps_all_but_the_password(url: str, masked: str) -> None:
    assert mask_url(url) == masked


async def test_password_is_in_no_error_text(postgres: PostgresServer) -> None:
    wrong_password = postgres.url().replace(postgres.password, PASSWORD)
    refused_port = wrong_password.replace(str(postgres.port), "1")
    as_parameter = f"postgresql://127.0.0.1:1/remuda?user=ada&password={PASSWORD}"
    for url in (wrong_password, refused_port, as_parameter):
        with pytest.raises(StoreUnusable) as failed:
            await reopened(url)
        assert PASSWORD not in "".join(traceback.format_exception(failed.value))


async def test_stored_secret_is_in_no_error_text(database: Database) -> None:
    def write_twice(connection: Connection, now: datetime) -> None:
        for _ in range(2):
            connection.execute(insert(secrets).values(name="token", value=PASSWORD, created_at=now))

    with pytest.raises(IntegrityError) as failed:
        await database.transact(write_twice)
    assert PASSWORD not in "".join(traceback.format_exception(failed.value))
