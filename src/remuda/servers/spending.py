"""Money for requests to paid servers: reserved before they are sent, from what this frontend has taken of the
month's budget. Taking more asks the store, which is why a request to a paid server may do so, once in a
while: no other does.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from msgspec import structs

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.prices import Money, rounded
from remuda.inference.failures import Unaffordable, Unlimited, Unmetered, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.router.table import Route
from remuda.servers.budgets import (
    PaidEnding,
    Purse,
    answer_limit,
    chunk,
    cost_max,
    month_of,
    settled_cost,
    tokens_limit,
)
from remuda.servers.model import AdoptedServer, Server

log = structlog.get_logger(__name__)

_STORE_S: Final = 5.0
_WRITE_EVERY_S: Final = 5.0
_IDLE_S: Final = 60.0  # After which what is free is given back, for other frontends to spend.


@dataclass(frozen=True, slots=True)
class MonthSpending:
    """Of one server in one month. `taken` includes what frontends hold and have not spent."""

    server: str
    month: str
    taken: Money
    spent: Money


class BudgetStore(Protocol):
    async def take(self, server: str, month: str, amount: Money, budget: Money, at_least: Money) -> Money:
        """Up to `amount` of what is left of the budget, and nothing if less than `at_least` is."""
        ...

    async def settle(self, server: str, month: str, *, spent: Money, given_back: Money) -> None:
        """A frontend has spent so much more of what it had taken, and needs so much of it no more."""
        ...

    async def spending(self, month: str) -> Sequence[MonthSpending]: ...


@dataclass(slots=True)
class _Account:
    purse: Purse
    written: Money = 0  # Of what was spent, as the store knows it.
    used_s: float = 0.0


class Spending:
    """Implements router.spending.Budgets."""

    def __init__(
        self, store: BudgetStore, clock: Clock, adopted: Callable[[], Sequence[AdoptedServer]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._adopted = adopted
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._taking = anyio.Lock()

    @asynccontextmanager
    async def __call__(self, route: Route, call: InferenceCall) -> AsyncIterator[InferenceCall]:
        server = self._server(route)
        answer_tokens = tokens_limit(call.request, server.max_tokens)
        price = route.price
        if answer_tokens is None or price is None:
            raise _unlimited(server, call)
        most = cost_max(call, price, answer_tokens)
        account = await self._reserved(server, most)
        tally, ending = call.tally, PaidEnding.BROKEN_OFF
        tally.usage_told, tally.kept_tokens = False, 0  # By one tried before.
        tally.prompt_tokens = tally.completion_tokens = 0
        limit = answer_limit(call.request, server.max_tokens)
        try:
            yield structs.replace(call, max_tokens=limit, paid=True)
            ending = PaidEnding.FINISHED
        except UpstreamFailed as failure:
            took_nothing = tally.usage_told and not tally.prompt_tokens + tally.completion_tokens
            if failure.unprocessed or took_nothing:
                ending = PaidEnding.REFUSED
            raise
        finally:
            read = tally.prompt_tokens + tally.kept_tokens  # What is kept costs up to twice as much.
            told = price.cost(read, tally.completion_tokens) if tally.usage_told else None
            cost = settled_cost(ending, most, told)
            if cost > most:
                log.warning("request_cost_more_than_reserved", server=server.name, model=route.endpoint.model)
            account.purse.settle(most, cost)
            tally.costs = (*tally.costs, (server.name, cost))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                await anyio.sleep(_WRITE_EVERY_S)
                await self._write()
        finally:
            with anyio.move_on_after(_STORE_S, shield=True):
                await self._write(leaving=True)

    def _server(self, route: Route) -> Server:
        found = next((one.server for one in self._adopted() if one.server.name == route.server), None)
        if found is None:
            raise Unaffordable(f"the server {route.server} was removed", status=503)
        return found

    async def _reserved(self, server: Server, amount: Money) -> _Account:
        month = month_of(self._clock.now())
        account = self._accounts.setdefault((server.name, month), _Account(Purse()))
        account.used_s = self._clock.monotonic()
        if not account.purse.reserve(amount):
            async with self._taking:
                await self._take(server, month, account.purse, amount)
                if not account.purse.reserve(amount):
                    raise _used_up(server, month, amount)
        return account

    async def _take(self, server: Server, month: str, purse: Purse, amount: Money) -> None:
        lacking = purse.lacks(amount)
        if not lacking:  # Another request has taken enough for both.
            return
        try:
            with anyio.fail_after(_STORE_S):
                wanted = chunk(server.budget, lacking)
                purse.taken += await self._store.take(server.name, month, wanted, server.budget, lacking)
        except (RemudaError, TimeoutError) as error:
            raise Unaffordable(
                f"the budget of the server {server.name} cannot be looked up: the database does not answer",
                hint="try again in a while",
                status=503,
            ) from error

    async def _write(self, *, leaving: bool = False) -> None:
        """What was spent since; and what lies idle, or all when leaving, is given back."""
        now_s = self._clock.monotonic()
        this_month = month_of(self._clock.now())
        for (server, month), account in list(self._accounts.items()):
            purse = account.purse
            idle = leaving or month != this_month or now_s - account.used_s >= _IDLE_S
            given_back = purse.give_back() if idle else 0
            spent = purse.spent
            if spent > account.written or given_back:
                try:
                    await self._store.settle(
                        server, month, spent=spent - account.written, given_back=given_back
                    )
                except RemudaError as error:
                    purse.taken += given_back
                    log.debug("spending_not_written", server=server, reason=error.message)
                    continue
                account.written = spent
            if idle and not purse.reserved:
                del self._accounts[server, month]

    def unwritten(self, month: str) -> Mapping[str, Money]:
        """What this frontend has spent in that month and not written down yet, by server."""
        return {
            server: one.purse.spent - one.written
            for (server, of), one in self._accounts.items()
            if of == month
        }


def _unlimited(server: Server, call: InferenceCall) -> Unaffordable:
    if not isinstance(call.request, ChatRequest | CompletionRequest):
        return Unmetered(
            f"the server {server.name} is paid by the token, and what a request of this kind costs there "
            "cannot be known before",
            hint="ask a model on one of your own nodes, or on a server that costs nothing",
        )
    return Unlimited(
        f"requests to the server {server.name} are paid for, and nothing limits what this one costs",
        hint=f"send max_tokens, or have it added: remuda servers edit {server.name} --max-tokens 2000",
    )


def _used_up(server: Server, month: str, amount: Money) -> Unaffordable:
    return Unaffordable(
        f"the budget of the server {server.name} for {month} ({rounded(server.budget)}) has less left than "
        f"the {rounded(amount)} that this request may cost",
        hint="send a smaller max_tokens, or ask an administrator to raise it: "
        f"remuda servers edit {server.name} --budget AMOUNT",
    )
