"""What keys have taken, in SQL: implements the port UsageStore."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select, update

from remuda.accounts.usage import KeyUsage, UsageField, UsagePlace, UsageQuery, UsageRow
from remuda.core import limits
from remuda.store.database import Database
from remuda.store.schema import api_keys, usage, usage_batches

_COUNTS: Final = ("requests", "failed", "prompt_tokens", "completion_tokens", "cost")
_COLUMNS: Final = {
    UsageField.DAY: usage.c.day,
    UsageField.KEY: usage.c.key_id,
    UsageField.MODEL: usage.c.model,
    UsageField.NODE: usage.c.node,
}
_ADD: Final = (
    update(usage)
    .where(*(column == bindparam(f"of_{field}") for field, column in _COLUMNS.items()))
    .values({name: usage.c[name] + bindparam(f"more_{name}") for name in _COUNTS})
)
_BATCHES_KEPT: Final = timedelta(days=2)  # Of a process that has ended.


class SqlUsageStore:
    """Implements accounts.usage.UsageStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, writer: str, batch: int, used: Mapping[UsagePlace, KeyUsage]) -> None:
        await self._database.transact(lambda c, now: _add(c, now, writer, batch, used))

    async def rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        return await self._database.read(lambda c, now: _rows(c, query))


def _add(
    connection: Connection, now: datetime, writer: str, batch: int, used: Mapping[UsagePlace, KeyUsage]
) -> None:
    if not _is_new(connection, now, writer, batch):
        return
    begun = False
    for place in sorted(used):  # In one order, against deadlocks.
        begun |= _add_one(connection, place, used[place])
    if begun:
        oldest = now.date() - timedelta(days=limits.USAGE_KEPT_DAYS)
        connection.execute(delete(usage).where(usage.c.day < oldest.isoformat()))
        connection.execute(delete(usage_batches).where(usage_batches.c.written_at < now - _BATCHES_KEPT))


def _is_new(connection: Connection, now: datetime, writer: str, batch: int) -> bool:
    """And it is not any more."""
    last = connection.scalar(select(usage_batches.c.batch).where(usage_batches.c.writer == writer))
    if last is None:
        connection.execute(insert(usage_batches).values(writer=writer, batch=batch, written_at=now))
    elif last < batch:
        values = update(usage_batches).where(usage_batches.c.writer == writer)
        connection.execute(values.values(batch=batch, written_at=now))
    return last is None or last < batch


def _add_one(connection: Connection, place: UsagePlace, used: KeyUsage) -> bool:
    """Whether it is the first there."""
    values = {"day": place.day.isoformat(), "key": place.key, "model": place.model, "node": place.node}
    more = {f"more_{name}": getattr(used, name) for name in _COUNTS}
    found = connection.execute(_ADD, {f"of_{field}": values[field] for field in _COLUMNS} | more).rowcount
    if found:
        return False
    counts = {name: getattr(used, name) for name in _COUNTS}
    named = {_COLUMNS[field].name: values[field] for field in _COLUMNS}
    connection.execute(insert(usage).values(**named, **counts))
    return True


def _rows(connection: Connection, query: UsageQuery) -> list[UsageRow]:
    return [_row(row) for row in connection.execute(_selected(query))]


def _selected(query: UsageQuery) -> Select[tuple[object, ...]]:
    by = [_COLUMNS[field] for field in query.by]
    sums = [func.sum(usage.c[name]).label(name) for name in _COUNTS]
    names = [func.max(api_keys.c.name).label("key_name")] if UsageField.KEY in query.by else []
    statement = select(*by, *names, *sums).where(
        usage.c.day >= query.since.isoformat(), usage.c.day <= query.until.isoformat()
    )
    if names or query.key:
        statement = statement.outerjoin_from(usage, api_keys, usage.c.key_id == api_keys.c.id)
    if query.key:
        statement = statement.where(or_(usage.c.key_id == query.key, api_keys.c.name == query.key))
    if query.model:
        statement = statement.where(usage.c.model == query.model)
    return statement.group_by(*by).order_by(*by).limit(limits.USAGE_ROWS_MAX + 1)


def _row(row: Row[tuple[object, ...]]) -> UsageRow:
    told = row._mapping
    counts = KeyUsage(*(int(told[name] or 0) for name in _COUNTS))
    day = told.get("day")
    return UsageRow(
        counts,
        None if day is None else date.fromisoformat(day),
        told.get("key_id"),
        told.get("key_name") or "",
        told.get("model"),
        told.get("node"),
    )
