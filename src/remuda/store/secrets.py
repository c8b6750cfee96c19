"""SecretStore on SQL. The first value written under a name stays, whoever wrote it."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Connection, insert, select

from remuda.store.database import Database
from remuda.store.schema import secrets


class SqlSecretStore:
    """Implements accounts.ports.SecretStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def secret(self, name: str, make: Callable[[], str]) -> str:
        return await self._database.transact(lambda c, now: _first(c, now, name, make))


def _first(connection: Connection, now: datetime, name: str, make: Callable[[], str]) -> str:
    held: str | None = connection.scalar(select(secrets.c.value).where(secrets.c.name == name))
    if held is not None:
        return held
    # Two frontends may both come here; the primary key lets one of them write, and the other looks again.
    value = make()
    connection.execute(insert(secrets).values(name=name, value=value, created_at=now))
    return value
