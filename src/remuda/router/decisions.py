"""The last decisions of this frontend, kept in memory, and those of others, which are asked on the bus: any
frontend explains any request.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct

from remuda.core.clock import Clock
from remuda.core.ids import FrontendId
from remuda.ops.broadcast import FrontendQuestions, FrontendSubject
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
        self._questions = FrontendQuestions(
            FrontendSubject(bus, subjects.DECISIONS_WANTED, frontend, DecisionWanted),
            FrontendSubject(bus, subjects.DECISIONS_TOLD, frontend, DecisionTold),
            topic=lambda message: message.request_id,
            answer=self._answer,
            answered_s=answered_s,
        )

    async def find(self, request_id: str) -> RequestExplanation | None:
        """None: no frontend that answered knows it. Raises what `alive` raises."""
        own = self._own(request_id)
        silent = set() if own is not None else set(await self._alive()) - {self._frontend}
        if own is not None or not silent:
            return own
        found: list[RequestExplanation] = []

        def receive(answer: DecisionTold) -> bool:
            silent.discard(FrontendId(answer.frontend))
            if answer.found is not None:
                found.append(answer.found)
            return bool(found) or not silent

        await self._questions.ask(DecisionWanted(frontend=self._frontend, request_id=request_id), receive)
        return found[0] if found else None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._questions.run(task_status=task_status)

    def _own(self, request_id: str) -> RequestExplanation | None:
        one = self._log.find(request_id)
        return None if one is None else explained(self._frontend, one, self._zero)

    def _answer(self, question: DecisionWanted) -> DecisionTold:
        name = question.request_id
        return DecisionTold(
            frontend=self._frontend, to=question.frontend, request_id=name, found=self._own(name)
        )
