"""KeyStore and SecretStore on SQL. A revoked key's row is kept, so that its digest cannot come back into
force; the first value written for a secret stays."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.core.errors import Conflict, NotFound
from remuda.store.database import Database
from remuda.store.schema import ColumnValues, api_keys, secrets

# Two of them are as rows have had it from the first.
_ROLES: Final = {KeyScope.ADMIN: "admin", KeyScope.INFERENCE: "user", KeyScope.READ: "read"}
_SCOPES: Final = {role: scope for scope, role in _ROLES.items()}
_in_force = select(api_keys).where(api_keys.c.revoked_at.is_(None))


class SqlKeyStore:
    """Implements accounts.keys.KeyStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keys(self) -> Sequence[ApiKey]:
        return await self._database.read(lambda c, now: _keys(c))

    async def add_key(self, key: ApiKey) -> None:
        await self._database.transact(lambda c, now: _add(c, key))

    async def edit_key(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        return await self._database.transact(lambda c, now: _edit(c, key_id, change))

    async def keys_used(self, key_ids: Collection[str]) -> None:
        await self._database.transact(lambda c, now: _used(c, now, key_ids))

    async def revoke_key(self, key_id: str) -> ApiKey:
        return await self._database.transact(lambda c, now: _revoke(c, now, key_id))


def _keys(connection: Connection) -> list[ApiKey]:
    """Those of a role that only a later release knows open nothing here."""
    known = _in_force.where(api_keys.c.role.in_(_SCOPES)).order_by(api_keys.c.name)
    return [_key(row) for row in connection.execute(known)]


def _add(connection: Connection, key: ApiKey) -> None:
    if connection.execute(_in_force.where(api_keys.c.name == key.name)).first() is not None:
        raise Conflict(
            f"a key named {key.name!r} exists already", hint="revoke it first, or choose another name"
        )
    connection.execute(
        insert(api_keys).values(
            id=key.id,
            name=key.name,
            role=_ROLES[key.scope],
            digest=key.digest,
            hint=key.hint,
            created_at=key.created_at,
            models=key.models,
            terms=key.terms,
            paused=key.paused,
        )
    )


def _edit(connection: Connection, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
    edited = change(_held(connection, key_id))
    values: ColumnValues = {"models": edited.models, "terms": edited.terms, "paused": edited.paused}
    connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(**values))
    return edited


def _used(connection: Connection, now: datetime, key_ids: Collection[str]) -> None:
    for key_id in sorted(key_ids):  # In one order, against deadlocks.
        connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(last_used_at=now))


def _revoke(connection: Connection, now: datetime, key_id: str) -> ApiKey:
    key = _held(connection, key_id)
    connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=now))
    return key


def _held(connection: Connection, key_id: str) -> ApiKey:
    """NotFound for one that is not in force."""
    row = connection.execute(_in_force.where(api_keys.c.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no key with the id {key_id}", hint="list the keys to see their ids")
    return _key(row)


def _key(row: Row[tuple[object]]) -> ApiKey:
    return ApiKey(
        row.id,
        row.name,
        _SCOPES[row.role],
        row.digest,
        row.hint,
        row.created_at,
        row.models,
        row.terms,
        row.paused,
        row.last_used_at,
    )


_SECRET = select(secrets.c.value).where(secrets.c.name == bindparam("name"))


class SqlSecretStore:
    """Implements accounts.keys.SecretStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def secret(self, name: str, make: Callable[[], str]) -> str:
        return await self._database.transact(lambda c, now: _first(c, now, name, make))

    async def held(self, name: str) -> str | None:
        """What was made before; None: nothing."""
        return await self._database.read(lambda c, now: c.scalar(_SECRET, {"name": name}))


def _first(connection: Connection, now: datetime, name: str, make: Callable[[], str]) -> str:
    held: str | None = connection.scalar(select(secrets.c.value).where(secrets.c.name == name))
    if held is not None:
        return held
    # Two frontends may both come here; the primary key lets one of them write, and the other looks again.
    value = make()
    connection.execute(insert(secrets).values(name=name, value=value, created_at=now))
    return value
