"""From a URL to a database that is ready for use."""

import os
from pathlib import Path

import anyio
from anyio import to_thread
from sqlalchemy import URL

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured
from remuda.store.address import parse_url
from remuda.store.connections import Connections, postgres_connections, sqlite_connections
from remuda.store.database import Database
from remuda.store.failures import translated, unusable
from remuda.store.migrate import migrate


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
