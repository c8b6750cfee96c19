"""What admins may do with servers that run without us."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final

import anyio

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound
from remuda.core.hints import did_you_mean
from remuda.core.prices import Money, TokenPrice
from remuda.servers.budgets import month_of
from remuda.servers.model import (
    AdoptedServer,
    Server,
    ServerKind,
    ServerStore,
    ServerUnusable,
    ServerUrl,
    check_server,
    name_from,
    parse_url,
)
from remuda.servers.probing import Prober, ScannedServer, proxy_of, scan
from remuda.servers.spending import BudgetStore, MonthSpending, Spending
from remuda.servers.watch import ServerWatch

_RESOLVE_S: Final = 5.0
HOSTS_MAX: Final = 64  # Of one scan.

Addresses = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class ServerWish:
    """What is asked for a server. None: as it is, or as it is found to be."""

    url: str | None = None
    name: str | None = None
    kind: ServerKind | None = None
    key: str | None = None
    prices: Mapping[str, TokenPrice] | None = None
    free: bool | None = None
    budget: Money | None = None
    parallel: int | None = None
    max_tokens: int | None = None
    unseen: bool = False  # Take it though it does not answer.


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server with how it is seen to be from here, and what it has cost this month."""

    adopted: AdoptedServer
    spent: Money = 0
    committed: Money = 0  # What was spent, and what frontends hold to spend.
    unused: Mapping[str, str] = field(default_factory=dict)  # By model, why no request goes there now.


class ServerService:
    """`own_ports`: of this frontend, which is no server to adopt."""

    def __init__(
        self,
        store: ServerStore,
        budgets: BudgetStore,
        prober: Prober,
        watch: ServerWatch,
        spending: Spending,
        clock: Clock,
        *,
        own_ports: Collection[int] = (),
        addresses: Addresses | None = None,
    ) -> None:
        self._store = store
        self._budgets = budgets
        self._prober = prober
        self._watch = watch
        self._spending = spending
        self._clock = clock
        self._own_ports = own_ports
        self._addresses = addresses or _addresses

    async def listed(self) -> Sequence[ServerState]:
        """As they are stored."""
        await self._watch.changed()
        return await self.as_seen()

    async def as_seen(self) -> Sequence[ServerState]:
        """As this frontend saw them last: what others have changed it sees within seconds."""
        adopted = self._watch.adopted()
        if not adopted:
            return []
        month = month_of(self._clock.now())
        spent = {one.server: one for one in await self._budgets.spending(month)}
        unwritten = self._spending.unwritten(month)
        return [
            replace(
                _state(one, spent.get(one.server.name), unwritten), unused=self._watch.unused(one.server.name)
            )
            for one in adopted
        ]

    async def get(self, name: str) -> ServerState:
        states = await self.listed()
        found = next((one for one in states if one.adopted.server.name == name), None)
        if found is None:
            known = [one.adopted.server.name for one in states]
            raise NotFound(
                f"there is no server {name!r}", hint=did_you_mean(name, known, "remuda servers lists them")
            )
        return found

    async def add(self, wish: ServerWish) -> ServerState:
        """Adopt a server, once it has shown that it is one."""
        url = parse_url(wish.url or "")
        server = _edited(Server(wish.name or name_from(url), wish.kind or ServerKind.OPENAI, url), wish)
        check_server(server)
        self._check_other(url)
        await self._check_costs(server, free=wish.free)
        if wish.kind is None and wish.unseen:
            raise Invalid(
                f"what {url} speaks can only be found out while it answers",
                hint="say it: --kind openai, ollama or anthropic",
                param="kind",
            )
        if wish.kind is None:
            server = replace(server, kind=await self._prober.kind(url, server.key))
        if not wish.unseen:
            await self._prober.models(server)
        added = await self._store.add_server(server)
        await self._watch.changed()
        await self._watch.asked(added.name)
        return await self.get(added.name)

    async def edit(self, name: str, wish: ServerWish) -> ServerState:
        """In force here when this returns, on other frontends within seconds."""
        before = (await self.get(name)).adopted.server
        url = before.url if wish.url is None else parse_url(wish.url)
        if url != before.url and before.key and wish.key is None:
            raise Invalid(
                f"the key of {name} was given for {before.url}, and is not sent to another address unasked",
                hint="give the key again with the new address",
                param="key",
            )
        server = _edited(replace(before, url=url, kind=wish.kind or before.kind), wish)
        check_server(server)
        if url != before.url or wish.free is not None or before.paid != server.paid:
            await self._check_costs(server, free=wish.free)
        if not wish.unseen and (server.url, server.kind, server.key) != (before.url, before.kind, before.key):
            await self._prober.models(server)
        await self._store.edit_server(server)
        await self._watch.changed()
        await self._watch.asked(name)
        return await self.get(name)

    async def remove(self, name: str) -> Server:
        removed = await self._store.remove_server(name)
        await self._watch.changed()
        return removed

    async def scan(self, hosts: Sequence[str]) -> list[ScannedServer]:
        """Servers at the usual ports of these hosts, or of this machine."""
        wanted = list(dict.fromkeys(parse_url(host).host for host in hosts)) or ["127.0.0.1"]
        if len(wanted) > HOSTS_MAX:
            raise Invalid(f"{len(wanted)} hosts at once are too many", hint=f"name up to {HOSTS_MAX}")
        return await scan(self._prober, wanted, leave_out=tuple(self._own_ports))

    def _check_other(self, url: ServerUrl) -> None:
        if url.port in self._own_ports and url.host in ("localhost", "127.0.0.1", "::1"):
            raise Invalid(f"{url} is this frontend itself", param="url")

    async def _check_costs(self, server: Server, *, free: bool | None) -> None:
        """A server out there usually costs money: that is not found out by the bill."""
        if server.paid or free or not await self._is_public(server.url):
            return
        raise Invalid(
            f"{server.url.host} is not in your own network, so its tokens may cost money",
            hint="say what a million tokens cost and how much a month may, as in --price 2.5/10 --budget 20, "
            "or that they cost nothing: --free",
            param="prices",
        )

    async def _is_public(self, url: ServerUrl) -> bool:
        if proxy_of(url) is not None:  # Which looks its name up.
            return True
        try:
            with anyio.fail_after(_RESOLVE_S):
                found = await self._addresses(url.host, url.port)
        except (OSError, TimeoutError):
            raise ServerUnusable(f"{url.host} cannot be found: no name server knows it") from None
        return any(ip_address(address.partition("%")[0]).is_global for address in found)


def _edited(server: Server, wish: ServerWish) -> Server:
    prices = server.prices if wish.prices is None else wish.prices
    budget = server.budget if wish.budget is None else wish.budget
    if wish.free and (wish.prices or wish.budget):
        raise Invalid("prices and a budget are for servers that are not free", param="free")
    if wish.free:
        prices, budget = {}, 0
    return replace(
        server,
        key=server.key if wish.key is None else wish.key,
        paid=bool(prices or budget),
        prices=prices,
        budget=budget,
        parallel=server.parallel if wish.parallel is None else wish.parallel,
        max_tokens=server.max_tokens if wish.max_tokens is None else wish.max_tokens,
    )


def _state(one: AdoptedServer, spent: MonthSpending | None, unwritten: Mapping[str, Money]) -> ServerState:
    so_far = (0 if spent is None else spent.spent) + unwritten.get(one.server.name, 0)
    return ServerState(one, so_far, max(so_far, 0 if spent is None else spent.taken))


async def _addresses(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]
