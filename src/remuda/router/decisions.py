"""The last decisions of this frontend, kept in memory, and those of others, which are asked on the bus: any
frontend explains any request.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from remuda.core.clock import Clock
from remuda.core.ids import FrontendId
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.router.table import Route
from remuda.wire import subjects
from remuda.wire.explanations import (
    DecisionTold,
    DecisionWanted,
    RequestExplanation,
    TryExplained,
    WaitExplained,
)

KEPT_MAX: Final = 10_000
_ANSWERED_S: Final = 2.0  # By other frontends.
_ASKED_AT_ONCE_MAX: Final = 100


class RoutingDecision(Struct, frozen=True, gc=False):
    """Of one request that is over. Holds nothing of it but names and figures, as they were at hand: words are
    made of them on request. Readings are of a clock that never goes back."""

    request_id: str
    began_s: float
    ended_s: float
    model: str
    caller: str
    status: int
    error: str
    error_message: str
    route: Route | None
    why: str
    waited_s: float
    waits: Sequence[tuple[str, float]]
    tried: Sequence[tuple[str, str, str]]  # Node, replica and failure.
    reloaded: bool
    first_token_s: float | None


class DecisionLog:
    """A client may name several requests alike: then the last one is kept."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._by_id: OrderedDict[str, RoutingDecision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def note(self, decision: RoutingDecision) -> None:
        kept, name = self._by_id, decision.request_id
        if name in kept:
            del kept[name]
        kept[name] = decision
        if len(kept) > self._kept_max:
            kept.popitem(last=False)

    def find(self, request_id: str) -> RoutingDecision | None:
        return self._by_id.get(request_id)


def explained(frontend: str, one: RoutingDecision, zero: datetime) -> RequestExplanation:
    """`zero` is when the clock that never goes back read 0."""
    route, first_s = one.route, one.first_token_s
    return RequestExplanation(
        request_id=one.request_id,
        frontend=frontend,
        at=zero + timedelta(seconds=one.ended_s),
        model=one.model,
        caller=one.caller,
        status=one.status,
        error=one.error,
        error_message=one.error_message,
        node="" if route is None else route.node_name,
        replica="" if route is None else str(route.key),
        why=one.why,
        waited_seconds=one.waited_s,
        waits=tuple(WaitExplained(cause=cause, seconds=seconds) for cause, seconds in one.waits),
        tried=tuple(TryExplained(node=node, replica=key, failure=why) for node, key, why in one.tried),
        reloaded=one.reloaded,
        first_token_seconds=None if first_s is None else first_s - one.began_s,
        total_seconds=one.ended_s - one.began_s,
    )


class _Asked:
    """A question to the others, until one of them knows or all have answered."""

    def __init__(self, others: Collection[FrontendId]) -> None:
        self.left = set(others)
        self.found: RequestExplanation | None = None
        self.over = anyio.Event()

    def told(self, message: DecisionTold) -> None:
        self.left.discard(FrontendId(message.frontend))
        self.found = message.found or self.found
        if self.found is not None or not self.left:
            self.over.set()


class Explanations:
    """`alive` are the frontends that live."""

    def __init__(
        self,
        frontend: FrontendId,
        log: DecisionLog,
        bus: BusPort,
        alive: Callable[[], Awaitable[Collection[FrontendId]]],
        clock: Clock,
        answered_s: float = _ANSWERED_S,
    ) -> None:
        self._frontend = frontend
        self._log = log
        self._alive = alive
        self._zero = clock.now() - timedelta(seconds=clock.monotonic())
        self._answered_s = answered_s
        self._wanted = FrontendSubject(bus, subjects.DECISIONS_WANTED, frontend, DecisionWanted)
        self._told = FrontendSubject(bus, subjects.DECISIONS_TOLD, frontend, DecisionTold)
        self._asked: dict[str, _Asked] = {}
        self._tasks: TaskGroup | None = None
        self._answering = 0

    async def find(self, request_id: str) -> RequestExplanation | None:
        """None: no frontend that answered knows it. Raises what `alive` raises."""
        own = self._log.find(request_id)
        if own is not None:
            return explained(self._frontend, own, self._zero)
        others = set(await self._alive()) - {self._frontend}
        if not others:
            return None
        asked = self._asked.get(request_id)
        if asked is None:
            if len(self._asked) >= _ASKED_AT_ONCE_MAX:
                return None
            return await self._ask(request_id, _Asked(others))
        with anyio.move_on_after(self._answered_s):
            await asked.over.wait()
        return asked.found

    async def _ask(self, request_id: str, asked: _Asked) -> RequestExplanation | None:
        self._asked[request_id] = asked
        try:
            with anyio.move_on_after(self._answered_s):
                if await self._wanted.publish(DecisionWanted(frontend=self._frontend, request_id=request_id)):
                    await asked.over.wait()
        finally:
            del self._asked[request_id]
        return asked.found

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._wanted.listen, self._answer)
            tasks.start_soon(self._told.listen, self._hear)
            task_status.started()
            await anyio.sleep_forever()

    def _answer(self, message: DecisionWanted) -> None:
        if self._tasks is not None and self._answering < _ASKED_AT_ONCE_MAX:
            self._answering += 1
            self._tasks.start_soon(self._tell, message)

    async def _tell(self, message: DecisionWanted) -> None:
        try:
            own = self._log.find(message.request_id)
            found = None if own is None else explained(self._frontend, own, self._zero)
            told = DecisionTold(
                frontend=self._frontend, to=message.frontend, request_id=message.request_id, found=found
            )
            await self._told.publish(told)
        finally:
            self._answering -= 1

    def _hear(self, message: DecisionTold) -> None:
        asked = self._asked.get(message.request_id)
        if message.to == self._frontend and asked is not None:
            asked.told(message)
