"""Brings a database up to this release's schema, or refuses one that a newer release made unreadable."""

from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, inspect, select, text

from remuda.core import limits
from remuda.core.errors import Misconfigured
from remuda.store.connections import Connections
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
