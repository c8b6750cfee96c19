"""How each kind of database is reached, everything in which the two differ, and errors of their drivers,
converted to ours. The statements elsewhere are the same for both, and their values never get into errors.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, DateTime, Engine, create_engine, event, func, make_url, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import Invalid, StoreUnusable
from remuda.store.database_url import check_kind, mask_url, refused

_REASON_CHARS_MAX: Final = 300
_IN_PLAIN_WORDS: Final = (
    ("connection refused|could not connect|is the server running", "it refuses connections"),
    ("password|authentication|pg_hba|role .* does not exist|permission denied", "it refuses our login"),
    ("translate host name|name or service not known|resolve", "the name of its host is not known"),
    ("disk is full|no space left|quota", "its disk is full"),
    ("read-?only", "it takes no changes: it is read-only"),
    ("is locked", "another program holds it locked"),
    ("disk i/o error", "its disk fails"),
    ("unable to open", "its file cannot be opened"),
    ("malformed|not a database", "its file is damaged"),
    ("too many (?:clients|connections)|remaining connection slots", "it has too many connections"),
    ("starting up|shutting down|in recovery", "it is starting or stopping"),
    ("time-?out|timed out", "no answer in time"),
    ("database .* does not exist", "there is no such database on its server"),
    ("closed|terminat|lost|reset|broken pipe|eof", "the connection to it was lost"),
)


def unusable(database: str, reason: str, public_reason: str = "") -> StoreUnusable:
    """`public_reason` stands in for a `reason` in the words of a driver, which name hosts and users."""
    return StoreUnusable(
        f"the database {database} cannot be used: {reason}",
        hint="check that it runs, that it can be reached from here and that its disk has room",
        public=f"the database cannot be used: {public_reason or reason}",
    )


def plain_reason(driver_text: str) -> str:
    """What a driver says, without its words."""
    found = (words for sign, words in _IN_PLAIN_WORDS if re.search(sign, driver_text, re.IGNORECASE))
    return next(found, "the frontend's log says why")


@contextmanager
def translated(database: str) -> Iterator[None]:
    """Raise StoreUnusable for a database in trouble and Invalid for a value that no column can hold.

    Violated constraints pass as they are: only the caller knows what they mean.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DataError, UnicodeEncodeError, OverflowError) as error:
        raise Invalid("a text or number in it cannot be stored") from error
    except DBAPIError as error:
        reason = _reason(error)
        raise unusable(database, reason, plain_reason(reason)) from error
    except PoolExhausted as error:
        raise unusable(database, "all connections to it are busy") from error


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:_REASON_CHARS_MAX]


def parse_url(url: str) -> Path | URL:
    """A file for SQLite, a URL with our driver for PostgreSQL; Misconfigured for anything else."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise refused(url, "cannot be read") from None
    if parsed.drivername == "sqlite":
        return _sqlite_path(url, parsed)
    check_kind(url)
    if parsed.host and "@" in parsed.host:
        raise refused(url, "has an @ in its password, which must be written as %40")
    return parsed.set(drivername="postgresql+psycopg")


def _sqlite_path(url: str, parsed: URL) -> Path:
    if parsed.host or parsed.query or not parsed.database or not Path(parsed.database).is_absolute():
        raise refused(url, "does not name a file by its absolute path")
    return Path(parsed.database)


_BEGIN_OPTION = "remuda_begin"


@dataclass(frozen=True, slots=True)
class Connections:
    """One database: how to begin reading and writing, whose clock counts, what a hung call waits on."""

    name: str  # For people: no password in it.
    pool: Engine
    reading: Engine
    writing: Engine
    writers_max: int
    now: Callable[[Connection], datetime]
    socket: Callable[[Connection], int | None]


def sqlite_connections(path: Path, clock: Clock) -> Connections:
    """Reads see one snapshot each; a write takes the write lock before it reads what it decides on."""
    pool = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": limits.SQLITE_BUSY_S, "isolation_level": None},
        pool_size=limits.STORE_READERS_MAX + 1,
        max_overflow=0,
        pool_timeout=limits.SQLITE_BUSY_S,
        hide_parameters=True,
    )
    return _sqlite(str(path), pool, clock)


def memory_connections(clock: Clock) -> Connections:
    """An SQLite database in memory, on the one connection there can be: no two calls may overlap."""
    options = {"isolation_level": None, "check_same_thread": False}
    pool = create_engine(
        "sqlite://",
        connect_args=options,
        poolclass=StaticPool,
        pool_reset_on_return=None,
        hide_parameters=True,
    )
    return _sqlite("in memory", pool, clock)


def _sqlite(name: str, pool: Engine, clock: Clock) -> Connections:
    event.listen(pool, "connect", _set_pragmas)
    event.listen(pool, "begin", _begin_as_told)
    return Connections(
        name=name,
        pool=pool,
        reading=pool.execution_options(**{_BEGIN_OPTION: "BEGIN"}),
        writing=pool.execution_options(**{_BEGIN_OPTION: "BEGIN IMMEDIATE"}),
        writers_max=1,
        now=lambda connection: clock.now(),
        socket=lambda connection: None,
    )


def postgres_connections(url: URL) -> Connections:
    """Every wait is bounded on both sides, so that neither a vanished server nor a vanished frontend
    holds on to anything for long."""
    pool = create_engine(
        url,
        connect_args={
            "application_name": "remuda",
            "connect_timeout": int(limits.POSTGRES_CONNECT_S),
            "tcp_user_timeout": int(limits.POSTGRES_UNACKNOWLEDGED_S * 1000),
            "keepalives_idle": 4,
            "keepalives_interval": 2,
            "keepalives_count": 2,
            "options": " ".join(
                f"-c {wait}={int(limits.POSTGRES_STATEMENT_S * 1000)}"
                for wait in ("statement_timeout", "idle_in_transaction_session_timeout")
            ),
        },
        isolation_level="READ COMMITTED",
        pool_size=limits.STORE_READERS_MAX + limits.STORE_WRITERS_MAX,
        max_overflow=0,
        pool_timeout=limits.POSTGRES_CONNECT_S,
        use_native_hstore=False,  # Else each new connection asks the server about a type unused here.
        hide_parameters=True,
    )
    event.listen(pool, "checkin", _as_the_server_says)
    return Connections(
        name=mask_url(url.set(drivername="postgresql").render_as_string()),
        pool=pool,
        reading=pool.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True),
        writing=pool,
        writers_max=limits.STORE_WRITERS_MAX,
        now=_server_now,
        socket=_server_socket,
    )


def _set_pragmas(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _as_the_server_says(connection: DBAPIConnection | None, _: ConnectionPoolEntry) -> None:
    """SQLAlchemy makes a connection that was used for reading demand READ WRITE from then on, which would
    override the setting of a server that is to be left alone."""
    import psycopg

    if isinstance(connection, psycopg.Connection) and not connection.closed:
        connection.read_only = None


def _begin_as_told(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options()[_BEGIN_OPTION])


def _server_now(connection: Connection) -> datetime:
    now = connection.scalar(select(func.clock_timestamp(type_=DateTime(timezone=True))))
    assert isinstance(now, datetime)
    return now.astimezone(UTC)


def _server_socket(connection: Connection) -> int:
    import psycopg  # Not imported where SQLite is used.

    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw.fileno()
