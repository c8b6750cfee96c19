"""How many replicas admins declared, in SQL: implements the port SchedulingStore."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Row, delete, insert, select, update

from remuda.scheduler.scheduling import Cooldown, ModelScheduling, SchedulingTerms
from remuda.store.database import Database
from remuda.store.schema import model_cooldowns, model_scheduling

_ROWS: Final = (
    select(
        model_scheduling,
        model_cooldowns.c.attempts,
        model_cooldowns.c.until,
        model_cooldowns.c.fleet,
        model_cooldowns.c.why,
    )
    .outerjoin(model_cooldowns, model_cooldowns.c.model == model_scheduling.c.model)
    .order_by(model_scheduling.c.model)
)


class SqlSchedulingStore:
    """Implements scheduler.scheduling.SchedulingStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def scheduling(self) -> Sequence[ModelScheduling]:
        return await self._database.read(lambda c, now: [_scheduling(row) for row in c.execute(_ROWS)])

    async def put_scheduling(self, model: str, terms: SchedulingTerms) -> ModelScheduling:
        return await self._database.transact(lambda c, now: _put(c, now, model, terms))

    async def remove_scheduling(self, model: str) -> bool:
        return await self._database.transact(lambda c, now: remove_scheduling(c, model))

    async def cooldowns(self) -> Mapping[str, Cooldown]:
        return await self._database.read(lambda c, now: _cooldowns(c))

    async def put_cooldown(self, model: str, cooldown: Cooldown | None) -> None:
        await self._database.transact(lambda c, now: _put_cooldown(c, model, cooldown))


def remove_scheduling(connection: Connection, model: str) -> bool:
    found = connection.execute(delete(model_scheduling).where(model_scheduling.c.model == model)).rowcount
    connection.execute(delete(model_cooldowns).where(model_cooldowns.c.model == model))
    return bool(found)


def rename_scheduling(connection: Connection, before: str, after: str) -> None:
    """What was declared for a model that has had the new name before is replaced."""
    there = select(model_scheduling.c.id).where(model_scheduling.c.model == before)
    if connection.scalar(there) is None:
        return
    remove_scheduling(connection, after)
    named = update(model_scheduling).where(model_scheduling.c.model == before)
    connection.execute(named.values(model=after))
    connection.execute(delete(model_cooldowns).where(model_cooldowns.c.model == before))


def _put(connection: Connection, now: datetime, model: str, terms: SchedulingTerms) -> ModelScheduling:
    same = model_scheduling.c.model == model
    there = connection.scalar(select(model_scheduling.c.id).where(same).with_for_update())
    values = {"terms": terms, "updated_at": now}
    if there is None:
        connection.execute(insert(model_scheduling).values(model=model, created_at=now, **values))
    else:
        connection.execute(update(model_scheduling).where(same).values(**values))
    # Whatever could not be had before, this is another wish.
    connection.execute(delete(model_cooldowns).where(model_cooldowns.c.model == model))
    return _scheduling(connection.execute(_ROWS.where(same)).one())


def _cooldowns(connection: Connection) -> Mapping[str, Cooldown]:
    rows = connection.execute(select(model_cooldowns))
    return {row.model: Cooldown(row.attempts, row.until, row.fleet, row.why) for row in rows}


def _put_cooldown(connection: Connection, model: str, cooldown: Cooldown | None) -> None:
    same = model_cooldowns.c.model == model
    if cooldown is None:
        connection.execute(delete(model_cooldowns).where(same))
        return
    values = {
        "attempts": cooldown.attempts,
        "until": cooldown.until,
        "fleet": cooldown.fleet,
        "why": cooldown.why,
    }
    there = connection.scalar(select(model_cooldowns.c.model).where(same).with_for_update())
    if there is None:
        connection.execute(insert(model_cooldowns).values(model=model, **values))
    else:
        connection.execute(update(model_cooldowns).where(same).values(**values))


def _scheduling(row: Row[tuple[object]]) -> ModelScheduling:
    cooldown = None if row.until is None else Cooldown(row.attempts, row.until, row.fleet, row.why)
    return ModelScheduling(row.model, row.terms, row.id, row.created_at, row.updated_at, cooldown)
