"""RateStore on SQL."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from remuda.core.ids import NodeId
from remuda.scheduler.measured_speed import MeasuredRate, Rate, RateKey
from remuda.store.database import Database
from remuda.store.schema import ColumnValues, measured_rates, models, nodes


class SqlRateStore:
    """Implements scheduler.measured_speed.RateStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rates(self) -> Sequence[MeasuredRate]:
        return await self._database.read(lambda c, now: _rates(c))

    async def keep(self, rates: Sequence[MeasuredRate]) -> None:
        await self._database.transact(lambda c, now: _keep(c, now, rates))


def _rates(connection: Connection) -> list[MeasuredRate]:
    there = measured_rates.c.model.in_(select(models.c.name)) & measured_rates.c.node_id.in_(
        select(nodes.c.id)
    )
    kinds = measured_rates.c.kind.in_([kind.value for kind in Rate])  # A later release may keep more.
    return [_of(row) for row in connection.execute(select(measured_rates).where(there & kinds))]


def _of(row: Row[tuple[object]]) -> MeasuredRate:
    key = RateKey(Rate(row.kind), NodeId(row.node_id), row.model)
    return MeasuredRate(key, row.per_s, row.backend, row.weights_bytes)


def _keep(connection: Connection, now: datetime, rates: Sequence[MeasuredRate]) -> None:
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
    connection.execute(
        delete(table).where(
            table.c.model.not_in(select(models.c.name)) | table.c.node_id.not_in(select(nodes.c.id))
        )
    )
