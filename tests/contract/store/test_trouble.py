"""What callers see when the database is slow, locked, frozen, killed or given what it cannot hold."""

import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from sqlalchemy import Connection, event, insert, select

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, StoreUnusable
from remuda.fleet.ports import FleetStore
from remuda.store.connections import sqlite_connections
from remuda.store.database import Database, _Call, migrate, open_database
from remuda.store.fleet import SqlFleetStore
from remuda.store.schema import secrets
from tests.contract.store.builders import admitting, candidate, registered, row_count
from tests.support.postgres import PostgresServer, postgres_server

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0


@pytest.fixture
def mortal() -> Iterator[PostgresServer]:
    """A server that a test may kill or freeze."""
    with postgres_server() as server:
        yield server


@pytest.fixture
async def on_mortal(mortal: PostgresServer) -> AsyncIterator[Database]:
    database = await open_database(mortal.new_database(), clock=SystemClock())
    yield database
    await database.close()


def write_secret(connection: Connection, now: datetime) -> None:
    connection.execute(insert(secrets).values(name="token", value="hunter2", created_at=now))


async def test_work_that_fails_is_rolled_back(database: Database) -> None:
    def work(connection: Connection, now: datetime) -> None:
        write_secret(connection, now)
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        await database.transact(work)
    assert await row_count(database, secrets) == 0


async def test_now_is_aware_and_in_utc(database: Database) -> None:
    now = await database.read(lambda connection, now: now)
    assert now.utcoffset() == timedelta()


async def test_values_no_column_can_hold_are_invalid_input(fleet_store: FleetStore) -> None:
    unstorable = "lone surrogate \ud800"
    with pytest.raises(Invalid):
        await fleet_store.register(unstorable, admitting(candidate(unstorable), "id"))
    node = await registered(fleet_store)
    with pytest.raises(Invalid):
        await fleet_store.amend(node.id, lambda known: replace(known, max_replicas=1 << 70))


async def test_work_that_outlasts_the_deadline_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.STORE_CALL_S", 0.2)
    release = threading.Event()
    try:
        with pytest.raises(StoreUnusable, match=r"no answer within 0\.2 s"):
            await database.transact(lambda connection, now: release.wait(10))
    finally:
        release.set()


async def test_locked_sqlite_file_is_unusable_and_then_usable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.SQLITE_BUSY_S", 0.1)
    database = await open_database(f"sqlite:///{tmp_path}/remuda.db", clock=SystemClock())
    other = sqlite3.connect(tmp_path / "remuda.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnusable, match="locked"):
            await database.transact(write_secret)
        await database.ping()
        other.execute("ROLLBACK")
        await database.transact(write_secret)
    finally:
        other.close()
        await database.close()


async def test_full_disk_is_said_to_be_full_and_what_is_there_can_be_read(tmp_path: Path) -> None:
    async def fill() -> None:
        for number in range(1000):
            await registered(store, f"node-{number}")

    connections = sqlite_connections(tmp_path / "full.db", SystemClock())
    event.listen(connections.pool, "connect", lambda c, _: c.execute("PRAGMA max_page_count=128"))
    migrate(connections)
    database = Database(connections)
    store = SqlFleetStore(database)
    try:
        with pytest.raises(StoreUnusable, match="full"):
            await fill()
        await database.ping()
        assert (await store.fleet()).nodes
    finally:
        await database.close()


async def test_server_killed_and_restarted_is_unusable_and_then_usable_again(
    mortal: PostgresServer, on_mortal: Database
) -> None:
    store = SqlFleetStore(on_mortal)
    node = await registered(store)
    mortal.kill()
    with pytest.raises(StoreUnusable), anyio.fail_after(10):
        await on_mortal.ping()
    with pytest.raises(StoreUnusable), anyio.fail_after(10):
        await registered(store, "beta")
    mortal.start()
    assert (await store.fleet()).nodes == [node]
    await registered(store, "beta")


async def test_restart_between_two_calls_goes_unnoticed(mortal: PostgresServer, on_mortal: Database) -> None:
    store = SqlFleetStore(on_mortal)
    node = await registered(store)
    mortal.kill()
    mortal.start()
    assert (await store.fleet()).nodes == [node]


async def test_frozen_server_holds_no_thread_beyond_the_deadline(
    mortal: PostgresServer, on_mortal: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.core.limits.STORE_CALL_S", 1.0)
    started, frozen, left = threading.Event(), threading.Event(), threading.Event()

    def work(connection: Connection, now: datetime) -> None:
        started.set()
        frozen.wait(PATIENCE_S)
        try:
            connection.execute(select(1))
        finally:
            left.set()

    async def freeze() -> None:
        await to_thread.run_sync(started.wait, PATIENCE_S)
        mortal.freeze()
        frozen.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(freeze)
        with pytest.raises(StoreUnusable, match="no answer within 1 s"):
            await on_mortal.transact(work)
    assert await to_thread.run_sync(left.wait, PATIENCE_S)
    mortal.thaw()
    await on_mortal.ping()


class HesitantClock(SystemClock):
    """Lets a test do something between the start of a transaction and its work."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def now(self) -> datetime:
        self.asked.set()
        self.go_on.wait(PATIENCE_S)
        return super().now()


async def test_caller_who_left_before_the_turn_came_changes_nothing(tmp_path: Path) -> None:
    """However long a call waited for the database: what was given up on is not done behind one's back."""
    database = await open_database(f"sqlite:///{tmp_path}/remuda.db", clock=SystemClock())
    clock, over = HesitantClock(), threading.Event()
    connections = sqlite_connections(tmp_path / "remuda.db", clock)
    event.listen(connections.pool, "checkin", lambda *_: over.set())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Database(connections).transact, write_secret)
        await to_thread.run_sync(clock.asked.wait, PATIENCE_S)
        tasks.cancel_scope.cancel()
    clock.go_on.set()
    assert await to_thread.run_sync(over.wait, PATIENCE_S)
    assert await row_count(database, secrets) == 0
    await Database(connections).close()
    await database.close()


def test_a_call_given_up_before_its_socket_is_known_is_let_go_as_well() -> None:
    ours, servers = socket.socketpair()
    call = _Call()
    call.give_up()
    with ours, servers, call.holding(ours.fileno()):
        servers.settimeout(5)
        assert servers.recv(1) == b""
