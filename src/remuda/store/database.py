"""Runs transactions. Each is one synchronous function, carried out in a worker thread with a deadline.
Nothing here knows what the functions are about."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from remuda.core import limits
from remuda.store.connections import Connections, translated, unusable

T = TypeVar("T")
Work = Callable[[Connection, datetime], T]
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

    async def transact(self, work: Work[T]) -> T:
        """Run `work` in one transaction. What it raises rolls back and reaches the caller; StoreUnusable
        when the database does not answer, in which case the work may or may not have been done."""
        return await self._run(self._connections.writing, self._writers, work, limits.STORE_CALL_S)

    async def read(self, work: Work[T]) -> T:
        """Run `work`, which must not write, on one consistent snapshot."""
        return await self._run(self._connections.reading, self._readers, work, limits.STORE_CALL_S)

    async def ping(self) -> None:
        """Raises StoreUnusable when the database does not answer soon."""
        await self._run(self._connections.reading, self._readers, _ask_nothing, limits.STORE_PING_S)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.STORE_CALL_S):
            await to_thread.run_sync(self._connections.pool.dispose, abandon_on_cancel=True)

    async def _run(self, engine: Engine, limiter: CapacityLimiter, work: Work[T], limit_s: float) -> T:
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

    def _run_in_thread(self, engine: Engine, work: Work[T], call: "_Call") -> T:
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

    def _run_once(self, engine: Engine, work: Work[T], call: "_Call") -> T:
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
