"""Numbers of changes: whoever has seen all operations up to one number misses nothing by asking for what
comes after it."""

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, select, update

from remuda.ops.model import OpId
from remuda.store.schema import change_count, operations

_LATEST = select(change_count.c.latest)
_LATEST_LOCKED = _LATEST.with_for_update()
_COUNT = update(change_count)
_NUMBER = update(operations).where(operations.c.id == bindparam("row_id"))


def take_turn(connection: Connection) -> int:
    """Wait until nobody else is changing operations; the newest number. Comes first in a transaction.

    The next number is given by whoever commits next, so numbers follow the order of commits. That also makes
    what is read from here on stay as it is until this transaction ends.
    """
    latest: int = connection.scalars(_LATEST_LOCKED).one()
    return latest


def number_changes(connection: Connection, latest: int, changed: Iterable[OpId]) -> None:
    """Give each of these operations a number of its own, after `latest`, which is taken."""
    numbered = [{"row_id": op, "change": number} for number, op in enumerate(changed, latest + 1)]
    if numbered:
        connection.execute(_NUMBER, numbered)
    connection.execute(_COUNT, {"latest": latest + len(numbered)})


def latest_change(connection: Connection) -> int:
    latest: int = connection.scalars(_LATEST).one()
    return latest
