"""From a URL to a database of this release's schema, ready for use; one that a newer release made unreadable
is refused."""

import os
from datetime import datetime
from pathlib import Path

import anyio
from anyio import to_thread
from sqlalchemy import URL, Connection, delete, func, insert, inspect, select, text

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured
from remuda.store.connections import (
    Connections,
    parse_url,
    postgres_connections,
    sqlite_connections,
    translated,
    unusable,
)
from remuda.store.database import Database
from remuda.store.schema import MIN_COMPATIBLE_VERSION, SCHEMA_VERSION, schema_info

_LOCK_KEY = 0x72656D756461  # Any number will do, if every release takes the same one.


def migrate(connections: Connections) -> None:
    """Migrate in one transaction and under a lock, so that of frontends starting together one does it.

    Misconfigured when the database says that releases as old as this one cannot work with it. A newer
    one that does not say so is used as it is.
    """
    with connections.writing.begin() as connection:
        _lock(connection)
        version = _current_version(connection, connections.name)
        if version < SCHEMA_VERSION:
            _upgrade(connection, connections.now(connection))


def _lock(connection: Connection) -> None:
    """On SQLite the transaction itself holds the one write lock already."""
    if connection.dialect.name != "postgresql":
        return
    for wait in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(text(f"SET LOCAL {wait} = {int(limits.STORE_OPEN_S * 1000)}"))
    connection.execute(text(f"SET LOCAL lock_timeout = {int(limits.STORE_MIGRATION_LOCK_S * 1000)}"))
    connection.execute(select(func.pg_advisory_xact_lock(_LOCK_KEY)))


def _current_version(connection: Connection, name: str) -> int:
    """The version the database is at, 0 for an empty one."""
    if not inspect(connection).has_table(schema_info.name):
        return 0
    info = connection.execute(select(schema_info)).one()
    if info.min_compatible_version > SCHEMA_VERSION:
        raise Misconfigured(
            f"the database {name} was made by a newer release: its schema version is {info.version}, "
            f"which needs at least {info.min_compatible_version}, and this release has {SCHEMA_VERSION}",
            hint="install the newer release here too, or point this one at another database",
        )
    version: int = info.version
    return version


def _upgrade(connection: Connection, now: datetime) -> None:
    from alembic import command  # As long to import as all of SQLAlchemy, and most starts need none of it.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "remuda.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(delete(schema_info))
    connection.execute(
        insert(schema_info).values(
            version=SCHEMA_VERSION, min_compatible_version=MIN_COMPATIBLE_VERSION, updated_at=now
        )
    )


async def open_database(url: str, *, clock: Clock) -> Database:
    """Connect and migrate. On SQLite `clock` tells the time; on PostgreSQL the server's own does, so that
    all frontends agree on it.

    Misconfigured for a URL, a file or a schema that cannot be used; StoreUnusable for a server that
    cannot be reached now.
    """
    match parse_url(url):
        case URL() as server:
            connections = postgres_connections(server)
        case Path() as path:
            connections = sqlite_connections(path, clock)
            await to_thread.run_sync(_make_private_file, path)
    database = Database(connections)
    try:
        with anyio.fail_after(limits.STORE_OPEN_S):
            await to_thread.run_sync(_migrate, connections, abandon_on_cancel=True)
    except BaseException as error:
        await database.close()
        if isinstance(error, TimeoutError):
            raise unusable(database.name, f"not ready within {limits.STORE_OPEN_S:g} s") from None
        raise
    return database


def _migrate(connections: Connections) -> None:
    with translated(connections.name):
        migrate(connections)


def _make_private_file(path: Path) -> None:
    """A new file and its folder are for their owner only: the file holds keys and tokens."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Misconfigured(
            f"the database file {path} cannot be written: {error.strerror}",
            hint="choose another data folder, or give this user the right to write there",
        ) from error
