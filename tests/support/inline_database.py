"""Transactions carried out at once, in the thread of the caller, on a database in memory. For simulation,
where nothing may run beside the event loop. The statements are those of every other database."""

import sqlite3
from typing import TypeVar

from anyio import CapacityLimiter
from sqlalchemy import Connection, Engine

from remuda.core.clock import Clock
from remuda.store.connections import Connections, memory_connections
from remuda.store.database import Database, Transaction, _Call, migrate

T = TypeVar("T")


class InlineDatabase(Database):
    """A call never waits, so it is over, committed or rolled back, before anybody else runs. Its connections
    are taken once and kept: to take one for each call costs as much as what most calls ask."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._driver = driver_connection(connections)
        self._taken: dict[Engine, Connection] = {}

    async def _run(self, engine: Engine, limiter: CapacityLimiter, work: Transaction[T], limit_s: float) -> T:
        return self._run_in_thread(engine, work, _Call())

    def _run_once(self, engine: Engine, work: Transaction[T], call: _Call) -> T:
        connection = self._taken.get(engine) or self._take(engine)
        self._driver.execute("BEGIN")
        try:
            result = work(connection, self._connections.now(connection))
        except BaseException:
            self._driver.execute("ROLLBACK")
            raise
        self._driver.execute("COMMIT")
        return result

    def _take(self, engine: Engine) -> Connection:
        """In a transaction as far as SQLAlchemy knows, for ever: it is not asked to begin or end any."""
        connection = self._taken[engine] = engine.connect()
        connection.begin()
        self._driver.execute("ROLLBACK")
        return connection


def migrated_in_memory(clock: Clock) -> Connections:
    """A new, empty database of this release's schema."""
    connections = memory_connections(clock)
    migrate(connections)
    return connections


def driver_connection(connections: Connections) -> sqlite3.Connection:
    """The one connection beneath, to copy the whole database from or to."""
    pooled = connections.pool.raw_connection()
    try:
        connection = pooled.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        return connection
    finally:
        pooled.close()
