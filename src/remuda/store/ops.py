"""OpStore on SQL. Reads rows, lets ops.concurrency decide, writes rows: no rule about operations lives
here.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import anyio

from remuda.core import limits
from remuda.core.batching import Batcher, BatchLimits
from remuda.core.errors import RemudaError
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.verdicts import BackendInventory
from remuda.ops.model import AttemptKey, Operation, OpId, Outcome, Step, Wish
from remuda.ops.ports import Filter, Live, Progress, Submitted, View
from remuda.store import ops_attempts, ops_intents, ops_views
from remuda.store.connections import unusable
from remuda.store.database import Database, Transaction
from remuda.store.ops_attempts import RequestHolder
from remuda.store.ops_intents import Wished
from remuda.store.ops_views import KnownSteps
from remuda.wire.nodes import InstalledArtifact

T = TypeVar("T")

_AT_ONCE: Final = nullcontext()


class SqlOpStore:
    """Implements ops.ports.OpStore. Each method is one transaction; new wishes and replies, which come in
    crowds, share theirs.

    Changes of operations come one after another in the database. They wait for that here, where it costs no
    connection; and however many new wishes there are, one group of them stands before what moves old ones on.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = KnownSteps()
        self._turn = anyio.Lock(fast_acquire=True)
        self._wishing = anyio.Lock(fast_acquire=True)
        bounds = BatchLimits(limits.OPERATIONS_WAITING_MAX, limits.OPERATIONS_PER_WRITE_MAX)
        self._wishes = Batcher(self._take_wishes, partial(self._next_turn, self._wishing), bounds, _weight)
        self._replies = Batcher(self._take_replies, self._next_turn, bounds)

    async def submit(self, operation: Operation, steps: Sequence[Step]) -> Submitted:
        return await self._wishes.ask(Wished(operation, tuple(steps)))

    async def _take_wishes(self, wished: Sequence[Wished]) -> Sequence[Submitted | RemudaError]:
        return await self._database.transact(lambda c, now: ops_intents.submit(c, now, wished))

    async def live(self) -> Live:
        return await self._database.read(lambda c, now: ops_views.live(c, now, self._known))

    async def commit(
        self, changes: Sequence[Step], owner: FrontendId, open_for: timedelta
    ) -> Collection[Step]:
        if not changes:
            return ()
        claim = RequestHolder(owner, open_for)
        return await self._change(lambda c, now: ops_attempts.commit(c, now, changes, claim))

    async def hold(self, op: OpId, node: NodeId, attempt: int, open_for: timedelta) -> None:
        await self._database.transact(lambda c, now: ops_attempts.hold(c, op, node, attempt, now + open_for))

    async def let_go(self, owner: FrontendId) -> None:
        await self._database.transact(lambda c, now: ops_attempts.let_go(c, now, owner))

    async def answer(self, op: OpId, node: NodeId, outcome: Outcome) -> None:
        await self._replies.ask(((op, node, outcome.attempt), outcome))

    async def _take_replies(self, replies: Sequence[tuple[AttemptKey, Outcome]]) -> Sequence[None]:
        first = dict(reversed(replies))
        await self._database.transact(lambda c, now: ops_attempts.answer(c, now, first))
        return [None] * len(replies)

    async def note_progress(
        self, progress: Mapping[tuple[OpId, NodeId], Progress], silent_for: timedelta = timedelta()
    ) -> None:
        if progress:
            await self._change(lambda c, now: ops_attempts.note_progress(c, now, progress, silent_for))

    async def note_inventory(
        self, node: NodeId, boot: BootId, backends: Sequence[InstalledArtifact], age: timedelta = timedelta()
    ) -> None:
        await self._database.transact(
            lambda c, now: ops_attempts.note_inventory(c, now - age, node, boot, backends)
        )

    async def inventories(self) -> Sequence[BackendInventory]:
        return await self._database.read(lambda c, now: ops_views.inventories(c))

    async def tried(self) -> Sequence[tuple[Step, datetime]]:
        return await self._database.read(ops_views.tried)

    async def wish(self, op: OpId, wish: Wish) -> Operation:
        return await self._change(lambda c, now: ops_intents.set_wish(c, op, wish))

    async def retry(self, op: OpId, nodes: Collection[NodeId] | None, by: str) -> Operation:
        return await self._change(lambda c, now: ops_intents.retry(c, now, op, nodes, by))

    async def dismiss(self, ops: Collection[OpId]) -> int:
        return await self._change(lambda c, now: ops_intents.dismiss(c, ops))

    async def clear_history(self) -> int:
        return await self._change(lambda c, now: ops_intents.clear_history(c))

    async def view(self, op: OpId) -> View:
        return await self._database.read(lambda c, now: ops_views.view(c, op))

    async def views(self, which: Filter) -> Sequence[View]:
        return await self._database.read(lambda c, now: ops_views.views(c, which))

    async def changed_since(self, change: int, limit: int) -> tuple[Sequence[View], int]:
        return await self._database.read(
            lambda c, now: ops_views.changed_since(c, change, limit, self._known)
        )

    async def _change(self, work: Transaction[T]) -> T:
        async with self._next_turn():
            return await self._database.transact(work)

    @asynccontextmanager
    async def _next_turn(self, after: AbstractAsyncContextManager[None] = _AT_ONCE) -> AsyncIterator[None]:
        try:
            with anyio.fail_after(limits.OPERATIONS_TURN_S):
                async with after, self._turn:
                    yield
        except TimeoutError:
            raise unusable(self._database.name, "too many changes of operations at once") from None


def _weight(wished: Wished) -> int:
    return 1 + len(wished.steps)
