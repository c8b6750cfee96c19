"""Exchanges the numbers of requests in flight between frontends, about once a second. A frontend that has
not spoken for a while has nothing in flight, as far as the choice of a replica goes; before one is stopped,
its last word counts for as long as it lives."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Rejected, RemudaError
from remuda.core.ids import FrontendId, ReplicaKey
from remuda.ops.ports import BusMessage, BusPort
from remuda.router.in_flight import RequestLedger
from remuda.router.live_table import Tables
from remuda.wire import subjects
from remuda.wire.codec import Count, Many, Message, decode, encode

log = structlog.get_logger(__name__)

_EVERY_S: Final = 1.0
_GAP_S: Final = 0.05
_REPEAT_S: Final = 5.0  # By somebody who has nothing new to say: a message may have been lost.
_STALE_S: Final = 5.0
_FORGOTTEN_S: Final = 120.0


class HeldReplica(Message):
    """How many requests one frontend has with one replica."""

    model: str
    index: Count = 0
    in_flight: Count = 0


class RequestsHeld(Message):
    """Frontend to frontends, ours: what I have in flight, and up to which change I know the replicas."""

    frontend: str
    change: Count = 0
    held: Many[HeldReplica] = ()


@dataclass(frozen=True, slots=True)
class _Said:
    at_s: float
    change: int
    held: Mapping[ReplicaKey, int]


class PeerLoads:
    """Implements scheduler.ports.Frontends. `listening` are the frontends that live."""

    def __init__(
        self,
        frontend: FrontendId,
        tables: Tables,
        ledger: RequestLedger,
        bus: BusPort,
        clock: Clock,
        *,
        listening: Callable[[], Awaitable[Collection[FrontendId]]],
        every_s: float = _EVERY_S,
    ) -> None:
        self._frontend = frontend
        self._tables = tables
        self._ledger = ledger
        self._bus = bus
        self._clock = clock
        self._every_s = every_s
        self._listening = listening
        self._said: dict[FrontendId, _Said] = {}
        self._told: _Said | None = None

    async def alive(self) -> Collection[FrontendId]:
        return {self._frontend, *await self._listening()}

    def has_seen(self, frontend: FrontendId, change: int) -> bool:
        if frontend == self._frontend:
            return self._tables.now.change >= change
        said = self._said.get(frontend)
        return said is not None and said.change >= change

    def in_flight(self, frontend: FrontendId, key: ReplicaKey) -> int:
        if frontend == self._frontend:
            return self._ledger.own().get(key, 0)
        said = self._said.get(frontend)
        return 0 if said is None else said.held.get(key, 0)

    def everywhere(self, key: ReplicaKey) -> int:
        """Requests in flight with this replica, of all frontends together."""
        return self._ledger.own().get(key, 0) + sum(said.held.get(key, 0) for said in self._fresh())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            task_status.started()
            while True:
                changed = self._tables.changed
                await self._tell()
                self._forget()
                await anyio.sleep(_GAP_S)
                with anyio.move_on_after(self._every_s):
                    await changed.wait()

    # Speaking.

    async def _tell(self) -> None:
        now = _Said(self._clock.monotonic(), self._tables.now.change, self._ledger.own())
        if self._told is not None and _nothing_new(self._told, now):
            return
        held = tuple(
            HeldReplica(model=key.model, index=key.index, in_flight=count) for key, count in now.held.items()
        )
        message = RequestsHeld(frontend=self._frontend, change=now.change, held=held)
        try:
            await self._bus.publish(subjects.REQUESTS_HELD, encode(message))
        except RemudaError as error:  # It is said again in a second.
            log.debug("requests_held_not_told", reason=error.message)
        else:
            self._told = now

    # Listening.

    async def _listen(self) -> None:
        try:
            await self._bus.subscribe(subjects.REQUESTS_HELD, self._hear)
        except RemudaError as error:
            log.warning("requests_held_not_heard", reason=error.message)

    async def _hear(self, message: BusMessage) -> None:
        try:
            said = decode(RequestsHeld, message.payload)
        except Rejected as error:
            log.warning("requests_held_not_understood", reason=error.message)
            return
        speaker = FrontendId(said.frontend)
        if speaker == self._frontend:
            return
        if speaker not in self._said:
            self._told = None  # It has not heard us, either.
        held = {ReplicaKey(one.model, one.index): one.in_flight for one in said.held}
        self._said[speaker] = _Said(self._clock.monotonic(), said.change, held)
        self._hand_on()

    def _forget(self) -> None:
        kept_since_s = self._clock.monotonic() - _FORGOTTEN_S
        self._said = {one: said for one, said in self._said.items() if said.at_s > kept_since_s}
        self._hand_on()

    def _hand_on(self) -> None:
        total = Counter[ReplicaKey]()
        for said in self._fresh():
            total.update(said.held)
        self._ledger.hear(total)

    def _fresh(self) -> list[_Said]:
        fresh_since_s = self._clock.monotonic() - _STALE_S
        return [said for said in self._said.values() if said.at_s > fresh_since_s]


def _nothing_new(before: _Said, now: _Said) -> bool:
    same = not now.held and not before.held and now.change == before.change
    return same and now.at_s - before.at_s < _REPEAT_S
