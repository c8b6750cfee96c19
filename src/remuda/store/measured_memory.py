"""MemoryStore on SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Row, and_, delete, insert, select, tuple_, update

from remuda.models.memory import MemoryUse
from remuda.scheduler.measured_memory import MeasuredMemory, MemoryKey
from remuda.store.database import Database
from remuda.store.schema import ColumnValues, measured_memory, models

KEPT_PER_MODEL: Final = 50  # Of revisions, builds and GPUs; what was measured longest ago goes.
_KEY: Final = tuple(measured_memory.c[name] for name in MemoryKey._fields)


class SqlMemoryStore:
    """Implements scheduler.measured_memory.MemoryStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def measured(self) -> Sequence[MeasuredMemory]:
        return await self._database.read(lambda c, now: _measured(c))

    async def keep(self, measured: Sequence[MeasuredMemory]) -> None:
        await self._database.transact(lambda c, now: _keep(c, now, measured))


def _measured(connection: Connection) -> list[MeasuredMemory]:
    configured = measured_memory.c.model.in_(select(models.c.name))
    return [_of(row) for row in connection.execute(select(measured_memory).where(configured))]


def _of(row: Row[tuple[object]]) -> MeasuredMemory:
    key = MemoryKey(row.model, row.revision, row.build, row.hardware)
    return MeasuredMemory(key, MemoryUse(row.vram_bytes, row.ram_bytes))


def _keep(connection: Connection, now: datetime, measured: Sequence[MeasuredMemory]) -> None:
    for one in sorted(measured, key=lambda one: one.key):  # In one order, against deadlocks.
        _keep_one(connection, now, one)
    connection.execute(delete(measured_memory).where(measured_memory.c.model.not_in(select(models.c.name))))
    for model in {one.key.model for one in measured}:
        _forget_older(connection, model)


def _keep_one(connection: Connection, now: datetime, one: MeasuredMemory) -> None:
    same = and_(*(column == value for column, value in zip(_KEY, one.key, strict=True)))
    row = connection.execute(select(measured_memory).where(same).with_for_update()).one_or_none()
    known = MemoryUse() if row is None else _of(row).use
    values: ColumnValues = {
        "vram_bytes": max(one.use.vram_bytes, known.vram_bytes),
        "ram_bytes": max(one.use.ram_bytes, known.ram_bytes),
        "measured_at": now,
    }
    if row is None:
        connection.execute(insert(measured_memory).values(**one.key._asdict(), **values))
    else:
        connection.execute(update(measured_memory).where(same).values(**values))


def _forget_older(connection: Connection, model: str) -> None:
    of_model = measured_memory.c.model == model
    newest = select(*_KEY).where(of_model).order_by(measured_memory.c.measured_at.desc(), *_KEY)
    older = connection.execute(newest.offset(KEPT_PER_MODEL)).all()
    if older:
        connection.execute(delete(measured_memory).where(tuple_(*_KEY).in_([tuple(row) for row in older])))
