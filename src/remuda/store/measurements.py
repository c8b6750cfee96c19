"""What was measured of replicas, on SQL: the memory they took, and how fast nodes were with them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, not_, select, tuple_, update

from remuda.core.ids import NodeId
from remuda.models.memory import MemoryUse
from remuda.scheduler.measured_memory import MeasuredMemory, MemoryKey
from remuda.scheduler.measured_speed import MeasuredRate, Rate, RateKey
from remuda.store.database import Database
from remuda.store.schema import ColumnValues, measured_memory, measured_rates, models, nodes

KEPT_PER_MODEL: Final = 50  # Of revisions, builds and GPUs; what was measured longest ago goes.
_KEY: Final = tuple(measured_memory.c[name] for name in MemoryKey._fields)


class SqlMemoryStore:
    """Implements scheduler.measured_memory.MemoryStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def measured(self) -> Sequence[MeasuredMemory]:
        return await self._database.read(lambda c, now: _measured(c))

    async def keep(self, measured: Sequence[MeasuredMemory]) -> None:
        await self._database.transact(lambda c, now: _keep_memory(c, now, measured))


def _measured(connection: Connection) -> list[MeasuredMemory]:
    configured = measured_memory.c.model.in_(select(models.c.name))
    return [_memory(row) for row in connection.execute(select(measured_memory).where(configured))]


def _memory(row: Row[tuple[object]]) -> MeasuredMemory:
    key = MemoryKey(row.model, row.revision, row.build, row.hardware)
    return MeasuredMemory(key, MemoryUse(row.vram_bytes, row.ram_bytes))


def _keep_memory(connection: Connection, now: datetime, measured: Sequence[MeasuredMemory]) -> None:
    for one in sorted(measured, key=lambda one: one.key):  # In one order, against deadlocks.
        _keep_memory_of(connection, now, one)
    connection.execute(delete(measured_memory).where(measured_memory.c.model.not_in(select(models.c.name))))
    for model in {one.key.model for one in measured}:
        _forget_older(connection, model)


def _keep_memory_of(connection: Connection, now: datetime, one: MeasuredMemory) -> None:
    same = and_(*(column == value for column, value in zip(_KEY, one.key, strict=True)))
    row = connection.execute(select(measured_memory).where(same).with_for_update()).one_or_none()
    known = MemoryUse() if row is None else _memory(row).use
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


class SqlRateStore:
    """Implements scheduler.measured_speed.RateStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rates(self) -> Sequence[MeasuredRate]:
        return await self._database.read(lambda c, now: _rates(c))

    async def keep(self, rates: Sequence[MeasuredRate]) -> None:
        await self._database.transact(lambda c, now: _keep_rates(c, now, rates))


def _rates(connection: Connection) -> list[MeasuredRate]:
    there = not_(_is_gone())
    kinds = measured_rates.c.kind.in_([kind.value for kind in Rate])  # A later release may keep more.
    return [_rate(row) for row in connection.execute(select(measured_rates).where(there & kinds))]


def _rate(row: Row[tuple[object]]) -> MeasuredRate:
    key = RateKey(Rate(row.kind), NodeId(row.node_id), row.model)
    return MeasuredRate(key, row.per_s, row.backend, row.weights_bytes)


def _keep_rates(connection: Connection, now: datetime, rates: Sequence[MeasuredRate]) -> None:
    table = measured_rates
    for one in sorted(rates, key=lambda one: one.key):  # In one order, against deadlocks.
        key = {"kind": one.key.kind.value, "node_id": one.key.node, "model": one.key.model}
        same = and_(*(table.c[name] == value for name, value in key.items()))
        values: ColumnValues = {
            "per_s": one.per_s,
            "backend": one.backend,
            "weights_bytes": one.weights_bytes,
            "measured_at": now,
        }
        if connection.execute(select(table).where(same).with_for_update()).one_or_none() is None:
            connection.execute(insert(table).values(**key, **values))
        else:
            connection.execute(update(table).where(same).values(**values))
    connection.execute(delete(table).where(_is_gone()))


def _is_gone() -> ColumnElement[bool]:
    """Its node or its model. Of a backend that was installed by itself, the column has its name."""
    table = measured_rates
    no_model = (table.c.kind != Rate.BACKEND.value) & table.c.model.not_in(select(models.c.name))
    return no_model | table.c.node_id.not_in(select(nodes.c.id))
