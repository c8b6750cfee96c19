"""How replicas are used: requests in flight, counted by the process that holds them, in this one place;
those of other frontends, which they tell each other about once a second, and soon after one took or gave back
a seat of a replica that has only so many; and when this frontend last used
which replicas, recorded soon after a pause and now and then while the use lasts, but not with each request.

A frontend that has not spoken for a while has nothing in flight, as far as the choice of a replica goes;
before one is stopped, its last word counts for as long as it lives.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.events import AutoResetEvent, Notifier
from remuda.core.ids import FrontendId, ReplicaKey
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.router.live_table import Tables
from remuda.router.table import Route
from remuda.scheduler.upkeep_rules import noted_every
from remuda.wire import subjects
from remuda.wire.broadcasts import FrontendMessage
from remuda.wire.codec import Count, Many, Message

log = structlog.get_logger(__name__)


class RequestLedger:
    """What this frontend has in flight, and what the others announce (PeerLoads)."""

    def __init__(self) -> None:
        self._own: dict[ReplicaKey, int] = {}
        self._turns: dict[ReplicaKey, int] = {}
        self._turn = 0
        self._elsewhere: Mapping[ReplicaKey, int] = {}
        self._elsewhere_changes = Notifier()
        self.seats_changed = AutoResetEvent()  # For the one who tells other frontends.

    @property
    def elsewhere_changed(self) -> anyio.Event:
        """Set when others have announced that they have more or less in flight."""
        return self._elsewhere_changes.changed

    def begin(self, route: Route) -> None:
        """One more request is in flight there. The caller calls `end` too, however the request ends."""
        key = route.key
        self._turn += 1
        self._turns[key] = self._turn
        self._own[key] = self._own.get(key, 0) + 1
        if route.parallel:
            self.seats_changed.set()

    def end(self, route: Route) -> None:
        key = route.key
        left = self._own[key] - 1
        assert left >= 0, "it has begun"
        if left:
            self._own[key] = left
        else:
            del self._own[key]
        if route.parallel:
            self.seats_changed.set()

    def load(self, route: Route) -> int:
        return self._own.get(route.key, 0) + self._elsewhere.get(route.key, 0)

    def last_turn(self, route: Route) -> int:
        return self._turns.get(route.key, 0)

    def turns(self) -> Mapping[ReplicaKey, int]:
        """The last turn of each replica that was used here."""
        return dict(self._turns)

    def of(self, key: ReplicaKey) -> int:
        """Requests of this frontend with one replica."""
        return self._own.get(key, 0)

    def own(self) -> Mapping[ReplicaKey, int]:
        """Replicas with requests of this frontend, and how many."""
        return dict(self._own)

    def set_elsewhere(self, elsewhere: Mapping[ReplicaKey, int]) -> None:
        """What all other frontends have in flight."""
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self._elsewhere_changes.notify()

    def keep(self, keys: frozenset[ReplicaKey]) -> None:
        """Forget whose turn it was, of replicas that are no more."""
        self._turns = {key: turn for key, turn in self._turns.items() if key in keys}


_EVERY_S: Final = 1.0
_GAP_S: Final = 0.05
_REPEAT_S: Final = 5.0  # Also without news: a message may have been lost.
_STALE_S: Final = 5.0
_FORGOTTEN_S: Final = 120.0


class HeldReplica(Message):
    """How many requests one frontend has with one replica."""

    model: str
    index: Count = 0
    in_flight: Count = 0


class RequestsHeld(FrontendMessage):
    """Frontend to frontends, ours: what I have in flight, and up to which change I know the replicas."""

    frontend: str  # Required: without it the message says nothing.
    change: Count = 0
    held: Many[HeldReplica] = ()


@dataclass(frozen=True, slots=True)
class _Announcement:
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
        self._clock = clock
        self._listening = listening
        self._announced: dict[FrontendId, _Announcement] = {}
        self._sent: _Announcement | None = None
        self._subject = FrontendSubject(bus, subjects.REQUESTS_HELD, frontend, RequestsHeld)
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=_GAP_S, every_s=every_s)

    async def alive(self) -> Collection[FrontendId]:
        return {self._frontend, *await self._listening()}

    def heard(self) -> Collection[FrontendId]:
        """Those that have lately announced what they have in flight, and this one."""
        fresh_since_s = self._clock.monotonic() - 3 * _REPEAT_S
        told = {one for one, announced in self._announced.items() if announced.at_s > fresh_since_s}
        return {self._frontend, *told}

    def has_seen(self, frontend: FrontendId, change: int) -> bool:
        if frontend == self._frontend:
            return self._tables.now.change >= change
        announced = self._announced.get(frontend)
        return announced is not None and announced.change >= change

    def in_flight(self, frontend: FrontendId, key: ReplicaKey) -> int:
        if frontend == self._frontend:
            return self._ledger.of(key)
        announced = self._announced.get(frontend)
        return 0 if announced is None else announced.held.get(key, 0)

    def everywhere(self, key: ReplicaKey) -> int:
        """Requests in flight with this replica, of all frontends together."""
        return self._ledger.of(key) + sum(announced.held.get(key, 0) for announced in self._fresh())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subject.listen, self._receive)
            tasks.start_soon(self._broadcast.run)
            tasks.start_soon(self._tell_seats)
            task_status.started()
            while True:
                await self._tables.changed.wait()
                self._broadcast.send()

    async def _tell_seats(self) -> None:
        """Others let in as many as they believe that there is room for."""
        while True:
            await self._ledger.seats_changed.wait()
            if self._announced:
                self._broadcast.send()
            await anyio.sleep(_GAP_S)

    async def _publish(self) -> bool:
        self._forget()
        return await self._announce()

    async def _announce(self) -> bool:
        """False: it could not be published, and is due again."""
        now = _Announcement(self._clock.monotonic(), self._tables.now.change, self._ledger.own())
        if self._sent is not None and _nothing_new(self._sent, now):
            return True
        held = tuple(
            HeldReplica(model=key.model, index=key.index, in_flight=count) for key, count in now.held.items()
        )
        message = RequestsHeld(frontend=self._frontend, change=now.change, held=held)
        published = await self._subject.publish(message)
        if published:
            self._sent = now
        return published

    def _receive(self, message: RequestsHeld) -> None:
        sender = FrontendId(message.frontend)
        if sender not in self._announced:
            self._sent = None  # It has not received ours, either.
        held = {ReplicaKey(one.model, one.index): one.in_flight for one in message.held}
        self._announced[sender] = _Announcement(self._clock.monotonic(), message.change, held)
        self._update_ledger()

    def _forget(self) -> None:
        kept_since_s = self._clock.monotonic() - _FORGOTTEN_S
        self._announced = {
            one: announced for one, announced in self._announced.items() if announced.at_s > kept_since_s
        }
        self._update_ledger()

    def _update_ledger(self) -> None:
        total = Counter[ReplicaKey]()
        for announced in self._fresh():
            total.update(announced.held)
        self._ledger.set_elsewhere(total)

    def _fresh(self) -> list[_Announcement]:
        fresh_since_s = self._clock.monotonic() - _STALE_S
        return [announced for announced in self._announced.values() if announced.at_s > fresh_since_s]


def _nothing_new(before: _Announcement, now: _Announcement) -> bool:
    same = not now.held and not before.held and now.change == before.change
    return same and now.at_s - before.at_s < _REPEAT_S


_LOOK_S: Final = 1.0


class LastUsedStore(Protocol):
    async def touch(self, used: Mapping[ReplicaKey, timedelta]) -> None:
        """They were used so long ago, by no clock but the store's."""
        ...


class LastUsedWriter:
    """`usual` is the `keep_alive` of models that name none."""

    def __init__(
        self,
        tables: Tables,
        ledger: RequestLedger,
        clock: Clock,
        store: LastUsedStore,
        *,
        usual: timedelta,
    ) -> None:
        self._tables = tables
        self._ledger = ledger
        self._clock = clock
        self._store = store
        self._usual = usual
        self._turns: Mapping[ReplicaKey, int] = {}
        self._held: Mapping[ReplicaKey, int] = {}
        self._used_s: dict[ReplicaKey, float] = {}
        self._noted_s: dict[ReplicaKey, float] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await anyio.sleep(_LOOK_S)
            try:
                await self.note()
            except RemudaError as error:  # The next time tells it, too.
                log.debug("use_not_noted", reason=error.message)

    async def note(self) -> None:
        """Write what is due, and with it all that is not written yet."""
        now_s = self._clock.monotonic()
        self._look(now_s)
        unwritten = [
            key for key, used_s in self._used_s.items() if used_s > self._noted_s.get(key, float("-inf"))
        ]
        if not any(self._due(key, now_s) for key in unwritten):
            return
        await self._store.touch({key: timedelta(seconds=now_s - self._used_s[key]) for key in unwritten})
        self._noted_s |= dict.fromkeys(unwritten, now_s)

    def _look(self, now_s: float) -> None:
        """What was in flight at the last look has ended since, or has not: it was used until now."""
        turns, held = self._ledger.turns(), self._ledger.own()
        begun = {key for key, turn in turns.items() if turn != self._turns.get(key)}
        used = begun | held.keys() | self._held.keys()
        self._used_s = {key: now_s if key in used else self._used_s[key] for key in turns}
        self._noted_s = {key: noted_s for key, noted_s in self._noted_s.items() if key in turns}
        self._turns, self._held = turns, held

    def _due(self, key: ReplicaKey, now_s: float) -> bool:
        entry = self._tables.now.models.get(key.model)
        keep = None if entry is None else entry.config.keep_alive
        every = noted_every(self._usual if keep is None else keep)
        return key not in self._noted_s or now_s - self._noted_s[key] >= every.total_seconds()
