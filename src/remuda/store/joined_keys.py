"""Idempotency keys of wishes that joined an operation. The key of the wish that made it is in its own row."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select

from remuda.core import limits
from remuda.ops.model import Operation
from remuda.store.ops_rows import batches, to_operation
from remuda.store.schema import joined_keys, operations

_BY_KEY = (
    select(operations, joined_keys.c.key, joined_keys.c.selection.label("asked_selection"))
    .join(operations, operations.c.id == joined_keys.c.op_id)
    .where(joined_keys.c.key.in_(bindparam("values", expanding=True)))
)
_NEWEST = (
    select(joined_keys.c.key)
    .where(joined_keys.c.op_id == bindparam("op"))
    .order_by(joined_keys.c.joined_at.desc(), joined_keys.c.key)
    .limit(bindparam("most"))
)
_FORGET = delete(joined_keys).where(
    joined_keys.c.op_id == bindparam("op"), joined_keys.c.key.not_in(_NEWEST.scalar_subquery())
)


def find(connection: Connection, keys: Iterable[str]) -> dict[str, Operation]:
    """The operations that these keys joined, each with the selection that was asked for under its key."""
    return {
        row.key: replace(to_operation(row), selection=row.asked_selection)
        for batch in batches(keys)
        for row in connection.execute(_BY_KEY, {"values": batch}).all()
    }


def insert_all(connection: Connection, now: datetime, joined: Mapping[str, Operation]) -> None:
    """Of each operation the newest are kept."""
    for batch in batches(joined.items()):
        connection.execute(
            insert(joined_keys),
            [
                {"key": key, "op_id": operation.id, "selection": operation.selection, "joined_at": now}
                for key, operation in batch
            ],
        )
    for op in {operation.id for operation in joined.values()}:
        connection.execute(_FORGET, {"op": op, "most": limits.JOINED_KEYS_KEPT_MAX})
