"""Adopted servers and what they may cost, in SQL: implements the ports ServerStore and BudgetStore."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, Row, delete, insert, select, update

from remuda.core.errors import Conflict, NotFound
from remuda.core.prices import Money, parse_price
from remuda.servers.model import Server, ServerKind, parse_url
from remuda.servers.spending import MonthSpending
from remuda.store.database import Database
from remuda.store.schema import server_spending, servers


class SqlServerStore:
    """Implements servers.model.ServerStore and servers.spending.BudgetStore, each method in one
    transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def servers(self) -> tuple[Server, ...]:
        return await self._database.read(lambda c, now: _servers(c))

    async def add_server(self, server: Server) -> Server:
        return await self._database.transact(lambda c, now: _add(c, now, server))

    async def edit_server(self, server: Server) -> Server:
        return await self._database.transact(lambda c, now: _edit(c, now, server))

    async def remove_server(self, name: str) -> Server:
        return await self._database.transact(lambda c, now: _remove(c, name))

    async def take(self, server: str, month: str, amount: Money, budget: Money, at_least: Money) -> Money:
        return await self._database.transact(lambda c, now: _take(c, server, month, amount, budget, at_least))

    async def settle(self, server: str, month: str, *, spent: Money, given_back: Money) -> None:
        await self._database.transact(lambda c, now: _settle(c, server, month, spent, given_back))

    async def spending(self, month: str) -> Sequence[MonthSpending]:
        return await self._database.read(lambda c, now: _spending(c, month))


def _servers(connection: Connection) -> tuple[Server, ...]:
    return tuple(map(_server, connection.execute(select(servers).order_by(servers.c.name))))


def _add(connection: Connection, now: datetime, server: Server) -> Server:
    if connection.scalar(select(servers.c.name).where(servers.c.name == server.name)) is not None:
        raise Conflict(
            f"there is a server {server.name!r} already",
            hint="choose another name by --name, or change that one: remuda servers edit",
        )
    row = connection.execute(insert(servers).values(**_values(server, now)).returning(servers)).one()
    return _server(row)


def _edit(connection: Connection, now: datetime, server: Server) -> Server:
    of_it = servers.c.name == server.name
    values = {**_values(server, now), "change": max(server.change + 1, _change(now))}
    changed = update(servers).where(of_it, servers.c.change == server.change).values(**values)
    row = connection.execute(changed.returning(servers)).one_or_none()
    if row is not None:
        return _server(row)
    if connection.scalar(select(servers.c.name).where(of_it)) is None:
        raise no_server(server.name)
    raise Conflict(f"the server {server.name!r} was edited meanwhile", hint="look at it, and try again")


def _remove(connection: Connection, name: str) -> Server:
    gone = delete(servers).where(servers.c.name == name).returning(servers)
    row = connection.execute(gone).one_or_none()
    if row is None:
        raise no_server(name)
    return _server(row)


def no_server(name: str) -> NotFound:
    return NotFound(f"there is no server {name!r}", hint="remuda servers lists them")


def _change(now: datetime) -> int:
    """Grows, also from a server that was removed to the next one of its name."""
    return int(now.timestamp() * 1_000_000)


def _values(server: Server, now: datetime) -> Mapping[str, object]:
    return {
        "name": server.name,
        "kind": server.kind.value,
        "url": str(server.url),
        "key": server.key,
        "paid": server.paid,
        "prices": {model: str(price) for model, price in server.prices.items()},
        "budget": server.budget,
        "parallel": server.parallel,
        "max_tokens": server.max_tokens,
        "change": _change(now),
    }


def _server(row: Row[tuple[object]]) -> Server:
    return Server(
        row.name,
        ServerKind(row.kind),
        parse_url(row.url),
        row.key,
        row.paid,
        {model: parse_price(price) for model, price in row.prices.items()},
        row.budget,
        row.parallel,
        row.max_tokens,
        row.change,
    )


def _take(
    connection: Connection, server: str, month: str, amount: Money, budget: Money, at_least: Money
) -> Money:
    """The sum of what was taken is only ever changed by what it is then, so it never exceeds the budget."""
    of_it = (server_spending.c.server == server) & (server_spending.c.month == month)
    taken = connection.scalar(select(server_spending.c.taken).where(of_it).with_for_update())
    granted = min(amount, budget - (taken or 0))
    if granted < at_least or granted <= 0:
        return 0
    if taken is None:  # Two frontends may both come here; the primary key has one of them look again.
        row = {"server": server, "month": month, "taken": granted, "spent": 0}
        connection.execute(insert(server_spending).values(**row))
    else:
        changed = update(server_spending).where(of_it).values(taken=server_spending.c.taken + granted)
        connection.execute(changed)
    return granted


def _settle(connection: Connection, server: str, month: str, spent: Money, given_back: Money) -> None:
    of_it = (server_spending.c.server == server) & (server_spending.c.month == month)
    connection.execute(
        update(server_spending)
        .where(of_it)
        .values(
            taken=server_spending.c.taken - given_back,
            spent=server_spending.c.spent + spent,
        )
    )


def _spending(connection: Connection, month: str) -> list[MonthSpending]:
    rows = connection.execute(select(server_spending).where(server_spending.c.month == month))
    return [MonthSpending(row.server, row.month, row.taken, row.spent) for row in rows]
