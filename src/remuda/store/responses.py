"""Responses that are kept for their keys, in SQL: implements the port ResponseStore."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, select, update

from remuda.core.errors import Invalid
from remuda.inference.stored_responses import (
    CHAIN_BYTES_MAX,
    CHAIN_MAX,
    LEASE,
    OPEN,
    SWEPT_AT_ONCE,
    PreviousResponseMissing,
    StoredResponse,
    as_seen,
    over_budget,
)
from remuda.store.database import Database
from remuda.store.schema import responses


class SqlResponseStore:
    """Implements inference.stored_responses.ResponseStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, kept: StoredResponse, chain: Collection[str]) -> None:
        await self._database.transact(lambda c, now: _add(c, now, kept, chain))

    async def one(self, response_id: str, owner: str) -> StoredResponse | None:
        return await self._database.read(lambda c, now: _one(c, now, response_id, owner))

    async def chain(self, response_id: str, owner: str) -> Sequence[StoredResponse]:
        return await self._database.read(lambda c, now: _chain(c, now, response_id, owner))

    async def finish(self, ended: StoredResponse) -> bool:
        return await self._database.transact(lambda c, now: _finish(c, now, ended))

    async def cancel(self, response_id: str, owner: str) -> StoredResponse | None:
        return await self._database.transact(lambda c, now: _cancel(c, now, response_id, owner))

    async def delete(self, response_id: str, owner: str) -> bool:
        return await self._database.transact(lambda c, now: _delete(c, response_id, owner))

    async def renew(self, working_on: Collection[str]) -> Collection[str]:
        return await self._database.transact(lambda c, now: _renew(c, now, working_on))

    async def sweep(self, retention: timedelta, owner_bytes_max: int) -> int:
        return await self._database.transact(lambda c, now: _sweep(c, now, retention, owner_bytes_max))


def _add(connection: Connection, now: datetime, kept: StoredResponse, chain: Collection[str]) -> None:
    values = msgspec.structs.asdict(kept)
    values["lease_until"] = now + LEASE if kept.open else None
    connection.execute(insert(responses).values(**values, kept_bytes=kept.kept_bytes, used_at=now))
    for response_id in sorted(chain):  # In one order, against deadlocks.
        connection.execute(update(responses).where(responses.c.id == response_id).values(used_at=now))


def _of(response_id: str, owner: str) -> ColumnElement[bool]:
    return and_(responses.c.id == response_id, responses.c.owner == owner)


def _one(connection: Connection, now: datetime, response_id: str, owner: str) -> StoredResponse | None:
    row = connection.execute(select(responses).where(_of(response_id, owner))).one_or_none()
    return None if row is None else as_seen(_kept(row), now)


def _chain(connection: Connection, now: datetime, response_id: str, owner: str) -> list[StoredResponse]:
    found, wanted, together = list[StoredResponse](), response_id, 0
    while wanted:
        kept = _one(connection, now, wanted, owner)
        if kept is None:
            raise PreviousResponseMissing(
                f"there is no response {wanted[:80]!r}"
                + ("" if not found else ", from which this one goes on"),
                hint="it may have been deleted, or not been used for too long: send all of input instead",
            )
        together += kept.kept_bytes
        if len(found) == CHAIN_MAX or together > CHAIN_BYTES_MAX:
            raise Invalid(
                f"the conversation has more than {CHAIN_MAX} responses, or {CHAIN_BYTES_MAX >> 20} MiB",
                hint="begin a new one",
            )
        found.append(kept)
        wanted = kept.previous_id
    return found[::-1]


def _finish(connection: Connection, now: datetime, ended: StoredResponse) -> bool:
    still_open = and_(_of(ended.id, ended.owner), responses.c.status.in_(OPEN))
    statement = update(responses).where(still_open)
    done = connection.execute(
        statement.values(
            status=ended.status,
            output=ended.output,
            usage=ended.usage,
            error=ended.error,
            incomplete=ended.incomplete,
            completed=ended.completed,
            kept_bytes=ended.kept_bytes,
            lease_until=None,
            used_at=now,
        )
    )
    return done.rowcount > 0


def _cancel(connection: Connection, now: datetime, response_id: str, owner: str) -> StoredResponse | None:
    kept = _one(connection, now, response_id, owner)
    if kept is None or not kept.open or not kept.background:
        return kept
    statement = update(responses).where(_of(response_id, owner), responses.c.status.in_(OPEN))
    connection.execute(statement.values(status="cancelled", lease_until=None))
    return _one(connection, now, response_id, owner)


def _delete(connection: Connection, response_id: str, owner: str) -> bool:
    return connection.execute(delete(responses).where(_of(response_id, owner))).rowcount > 0


def _renew(connection: Connection, now: datetime, working_on: Collection[str]) -> set[str]:
    still_open = and_(responses.c.id.in_(sorted(working_on)), responses.c.status.in_(OPEN))
    statement = update(responses).where(still_open).values(status="in_progress", lease_until=now + LEASE)
    return set(connection.scalars(statement.returning(responses.c.id)))


def _sweep(connection: Connection, now: datetime, retention: timedelta, owner_bytes_max: int) -> int:
    lost = select(responses).where(responses.c.status.in_(OPEN), responses.c.lease_until < now)
    for row in connection.execute(lost.limit(SWEPT_AT_ONCE)):
        _finish(connection, now, as_seen(_kept(row), now))
    settled = responses.c.status.not_in(OPEN)
    old = select(responses.c.id).where(settled, responses.c.used_at < now - retention).limit(SWEPT_AT_ONCE)
    gone = list(connection.scalars(old))
    together = func.sum(responses.c.kept_bytes)
    owners = select(responses.c.owner).group_by(responses.c.owner).having(together > owner_bytes_max)
    for owner in list(connection.scalars(owners)):
        newest_first = (
            select(responses.c.id, responses.c.kept_bytes)
            .where(responses.c.owner == owner, settled)
            .order_by(responses.c.used_at.desc(), responses.c.id)
        )
        kept = [(row.id, row.kept_bytes) for row in connection.execute(newest_first)]
        gone += over_budget(kept, owner_bytes_max)[-SWEPT_AT_ONCE:]
    if gone:
        connection.execute(delete(responses).where(responses.c.id.in_(gone)))
    return len(set(gone))


def _kept(row: Row[tuple[object]]) -> StoredResponse:
    return StoredResponse(**{name: getattr(row, name) for name in StoredResponse.__struct_fields__})
