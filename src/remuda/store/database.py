"""From a URL to a database of this release's schema, ready for use (one that a newer release made
unreadable is refused), and transactions in it. Each is one synchronous function, carried out in a worker
thread with a deadline. Nothing here knows what the functions are about.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from sqlalchemy import URL, Connection, Engine, delete, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured
from remuda.store import new_sqlite
from remuda.store.connections import (
    Connections,
    parse_url,
    postgres_connections,
    sqlite_connections,
    translated,
    unusable,
)
from remuda.store.schema import MIN_COMPATIBLE_VERSION, SCHEMA_VERSION, schema_info

T = TypeVar("T")
Transaction = Callable[[Connection, datetime], T]
"""One whole transaction, given its connection and the database's `now`. It may be run a second time after
its first run was rolled back, so it must do nothing that a roll-back does not undo."""


class Database:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._readers = CapacityLimiter(limits.STORE_READERS_MAX)
        self._writers = CapacityLimiter(connections.writers_max)

    @property
    def name(self) -> str:
        """Which database this is, for people: its path, or its URL without the password."""
        return self._connections.name

    async def transact(self, work: Transaction[T]) -> T:
        """Run `work` in one transaction. What it raises rolls back and reaches the caller; StoreUnusable
        when the database does not answer, in which case the work may or may not have been done."""
        return await self._run(self._connections.writing, self._writers, work, limits.STORE_CALL_S)

    async def read(self, work: Transaction[T]) -> T:
        """Run `work`, which must not write, on one consistent snapshot."""
        return await self._run(self._connections.reading, self._readers, work, limits.STORE_CALL_S)

    async def ping(self) -> None:
        """Raises StoreUnusable when the database does not answer soon."""
        await self._run(self._connections.reading, self._readers, _ask_nothing, limits.STORE_PING_S)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.STORE_CALL_S):
            await to_thread.run_sync(self._connections.pool.dispose, abandon_on_cancel=True)

    async def _run(self, engine: Engine, limiter: CapacityLimiter, work: Transaction[T], limit_s: float) -> T:
        call = _Call()
        try:
            with anyio.fail_after(limit_s):
                return await to_thread.run_sync(
                    self._run_in_thread, engine, work, call, abandon_on_cancel=True, limiter=limiter
                )
        except TimeoutError:
            raise unusable(self.name, f"no answer within {limit_s:g} s") from None
        finally:
            call.give_up()

    def _run_in_thread(self, engine: Engine, work: Transaction[T], call: "_Call") -> T:
        with translated(self.name):
            try:
                return self._run_once(engine, work, call)
            except IntegrityError:
                pass  # Another frontend was writing the same row: the second look sees it.
            except DBAPIError as error:
                if call.at_work or not error.connection_invalidated:
                    raise
                # The connection had died in the pool: the second look gets a live one.
            return self._run_once(engine, work, call)

    def _run_once(self, engine: Engine, work: Transaction[T], call: "_Call") -> T:
        with (
            engine.connect() as connection,
            call.holding(self._connections.socket(connection)),
            connection.begin(),
        ):
            now = self._connections.now(connection)
            if call.given_up:
                raise unusable(self.name, "the caller has left")  # Rolls back; there is no reader for it.
            call.at_work = True
            return work(connection, now)


class _Call:
    """One call, as its two threads share it: the event loop's gives up, the worker's is let go by that.

    A server may be silent for ever, with its machine still acknowledging every packet: no time-out of the
    driver or the kernel covers that. Shutting the socket down does.
    """

    def __init__(self) -> None:
        self.given_up = False
        self.at_work = False
        self._socket: socket.socket | None = None

    @contextmanager
    def holding(self, descriptor: int | None) -> Iterator[None]:
        if descriptor is None:
            yield
            return
        # A duplicate is this call's own: no other connection can have come to live under its number.
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as self._socket:
            if self.given_up:  # Just before there was a socket to shut down.
                self.give_up()
            yield

    def give_up(self) -> None:
        """Without effect on a call that is over."""
        self.given_up = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _ask_nothing(connection: Connection, now: datetime) -> None:
    connection.execute(select(1))


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
            now = connections.now(connection)
            if version == 0 and new_sqlite.create(connection, SCHEMA_VERSION):
                _note_version(connection, now)
            else:
                upgrade(connection, now)


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


def upgrade(connection: Connection, now: datetime) -> None:
    """Run the migrations that are missing."""
    from alembic import command  # As long to import as all of SQLAlchemy, and most starts need none of it.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "remuda.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _note_version(connection, now)


def _note_version(connection: Connection, now: datetime) -> None:
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
