"""LeaseStore on SQL: for each limit of a key and span of time, a row for each frontend that has spent some of
it or set some aside.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from remuda.accounts.budgets import HeldAmount, Lease, LeaseClaim, LimitKind, lease
from remuda.store.database import Database
from remuda.store.schema import api_keys, key_leases

_KEPT: Final = timedelta(minutes=10)  # Of a span that is over, and of what a lost frontend had in flight.
_in_flight = key_leases.c.kind == LimitKind.CONCURRENT_REQUESTS.value
_UPDATE: Final = (
    update(key_leases)
    .where(
        key_leases.c.key_id == bindparam("of_key"),
        key_leases.c.kind == bindparam("of_kind"),
        key_leases.c.begins_at == bindparam("of_span"),
        key_leases.c.holder == bindparam("of_holder"),
    )
    .values(amount=bindparam("new_amount"), renewed_at=bindparam("now"))
)


class _Place(NamedTuple):
    key: str
    kind: str
    begins_at: datetime


class SqlLeaseStore:
    """Implements accounts.limiter.LeaseStore. A claim that is made twice changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, holder: str, claims: Sequence[LeaseClaim]) -> tuple[Sequence[Lease], datetime]:
        return await self._database.transact(lambda c, now: (_claim(c, now, holder, claims), now))


def _claim(connection: Connection, now: datetime, holder: str, claims: Sequence[LeaseClaim]) -> list[Lease]:
    held = _held(connection, sorted({claim.key for claim in claims}))
    leases = list[Lease]()
    for claim in claims:
        holders = held.setdefault(_place(claim), {})
        others = [one for name, one in holders.items() if name != holder]
        leases.append(lease(claim, others, now))
    _write(connection, now, holder, leases, held)
    return leases


def _held(connection: Connection, keys: Sequence[str]) -> dict[_Place, dict[str, HeldAmount]]:
    """What all have of these keys, which no other transaction changes until this transaction is over."""
    connection.execute(
        select(api_keys.c.id).where(api_keys.c.id.in_(keys)).order_by(api_keys.c.id).with_for_update()
    ).all()
    held = dict[_Place, dict[str, HeldAmount]]()
    for row in connection.execute(select(key_leases).where(key_leases.c.key_id.in_(keys))):
        place = _Place(row.key_id, row.kind, row.begins_at)
        held.setdefault(place, {})[row.holder] = HeldAmount(row.amount, row.renewed_at)
    return held


def _write(
    connection: Connection,
    now: datetime,
    holder: str,
    leases: Sequence[Lease],
    held: dict[_Place, dict[str, HeldAmount]],
) -> None:
    known = [one for one in leases if holder in held[_place(one)]]
    new = [one for one in leases if holder not in held[_place(one)]]
    if known:
        connection.execute(
            _UPDATE,
            [
                {
                    "of_key": one.key,
                    "of_kind": one.kind.value,
                    "of_span": one.span.begins,
                    "of_holder": holder,
                    "new_amount": one.amount,
                    "now": now,
                }
                for one in known
            ],
        )
    if new:
        rows = [
            {
                "key_id": one.key,
                "kind": one.kind.value,
                "begins_at": one.span.begins,
                "ends_at": one.span.ends,
                "holder": holder,
                "amount": one.amount,
                "renewed_at": now,
            }
            for one in new
        ]
        connection.execute(insert(key_leases), rows)
        connection.execute(delete(key_leases).where(~_in_flight, key_leases.c.ends_at < now - _KEPT))
        connection.execute(delete(key_leases).where(_in_flight, key_leases.c.renewed_at < now - _KEPT))


def _place(of: LeaseClaim | Lease) -> _Place:
    return _Place(of.key, of.kind.value, of.span.begins)
