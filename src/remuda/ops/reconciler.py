"""Moves operations towards their goals, pass by pass. It takes no input: a signal only wakes it, and several
frontends may run it at once. What to do is decided in `planning`."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode
from remuda.ops import planning
from remuda.ops.commander import Timeouts
from remuda.ops.model import AttemptKey, Dispatch, Moment, State, Step, StepPolicy
from remuda.ops.planning import PassPlan, Room
from remuda.ops.ports import UNCOUNTED, BusCheck, Commander, Figures, InventoryLister, Live, OpStore
from remuda.ops.reasons import StepCause, because

log = structlog.get_logger(__name__)

_REST_MIN: Final = timedelta(milliseconds=50)
_UNWANTED_FOR: Final = timedelta(seconds=5)  # Reports lag behind replies.


@dataclass(frozen=True, slots=True)
class Pace:
    """How often it looks by itself, and how long a request counts as open with no word of its holder."""

    busy_every: timedelta = timedelta(seconds=5)
    idle_every: timedelta = timedelta(seconds=30)
    open_for: timedelta = timedelta(seconds=20)


_AS_SHIPPED: Final = Pace()


class RequestKeeper(Commander, Protocol):
    @property
    def room(self) -> int: ...

    @property
    def own_room(self) -> int: ...

    @property
    def awaited(self) -> frozenset[AttemptKey]: ...

    @property
    def heard_of(self) -> frozenset[AttemptKey]: ...

    def keep(self, at_work: Collection[AttemptKey], *, telling: bool = False) -> None: ...

    def cancel(self, key: AttemptKey) -> None: ...


class WakeSignal(Protocol):
    @property
    def changed(self) -> anyio.Event: ...

    def notify(self) -> None: ...


class Reconciler:
    """Moves operations on, one pass after another."""

    def __init__(
        self,
        store: OpStore,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        commander: RequestKeeper,
        inventories: InventoryLister,
        signal: WakeSignal,
        *,
        frontend: FrontendId,
        clock: Clock,
        entropy: Entropy,
        timeouts: Timeouts,
        policy: StepPolicy,
        bus_trouble: BusCheck,
        pace: Pace = _AS_SHIPPED,
        figures: Figures = UNCOUNTED,
    ) -> None:
        self.failed_passes = 0
        self._store = store
        self._standings = standings
        self._commander = commander
        self._inventories = inventories
        self._signal = signal
        self._frontend = frontend
        self._clock = clock
        self._entropy = entropy
        self._timeouts = timeouts
        self._policy = policy
        self._bus_trouble = bus_trouble
        self._pace = pace
        self._figures = figures
        self._views = ObservedNodes()
        self._unwanted_since: dict[AttemptKey, datetime] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. A pass that fails is logged, and another one follows."""
        task_status.started()
        released = False
        while True:
            changed, began_s = self._signal.changed, self._clock.monotonic()
            try:
                if not released:
                    await self._store.let_go(self._frontend)
                    released = True
                wait = await self.pass_once()
            except RemudaError as error:  # The store is away, which is not a defect.
                self.failed_passes += 1
                log.warning("ops_pass_failed", failed=self.failed_passes, reason=error.message)
                wait = self._pace.busy_every
            except Exception:
                self.failed_passes += 1
                log.exception("ops_pass_broke", failed=self.failed_passes)
                wait = self._pace.busy_every
            # Half of the time at most, however fast changes come: they are dealt with together.
            spent = timedelta(seconds=self._clock.monotonic() - began_s)
            await anyio.sleep(max(spent, _REST_MIN).total_seconds())
            with anyio.move_on_after(wait.total_seconds()):
                await changed.wait()

    async def pass_once(self) -> timedelta:
        """Read, decide, write, send. Answers how long nothing is to be done unless something changes."""
        standings = await self._standings()  # First, so that what it shows at work is known to `live`.
        live = await self._store.live()
        self._figures.looked_at(live.operations)
        nodes = self._views.of(standings, live.inventories)
        at_work, telling = planning.attempts_at_work(live.steps), planning.telling(live.steps)
        self._commander.keep(at_work, telling=telling)
        moment_for, heard_of = self._moment_for(live.now), self._commander.heard_of
        decided = planning.plan(live, nodes, moment_for, self._room(), heard_of)
        await self._write_and_send(decided)
        self._inventories.want(sorted(decided.list_from))
        self._inventories.want(sorted(decided.list_anew), anew=True)
        await self._hold(live, nodes)
        await self._cancel_unwanted(live, nodes)
        return self._until_next(decided, live)

    async def _write_and_send(self, decided: PassPlan) -> None:
        if not decided.changes:
            return
        before = {step.key: step for step, _ in decided.changes}
        after = [after for _, after in decided.changes]
        written = await self._store.commit(after, self._frontend, self._pace.open_for)
        for step in written:
            _say_what_ended(before[step.key], step)
            self._count(before[step.key], step)
            dispatch = decided.dispatches.get(step.key)
            if dispatch is not None:
                await self._send(dispatch, step)
        if written:
            self._signal.notify()

    def _count(self, before: Step, after: Step) -> None:
        if after.attempt > before.attempt:
            self._figures.attempted(after.kind)
        if after.state.final and not before.state.final:
            self._figures.ended(after.kind, after.state)

    async def _send(self, dispatch: Dispatch, step: Step) -> None:
        log.info("dispatched", op=step.op, node=step.node_name, verb=dispatch.verb, attempt=dispatch.attempt)
        await self._commander.send(dispatch, step)

    async def _hold(self, live: Live, nodes: Mapping[NodeId, ObservedNode]) -> None:
        open_for = self._pace.open_for
        for op, node, attempt in planning.to_hold(live, nodes, self._commander.awaited, open_for):
            await self._store.hold(op, node, attempt, open_for)

    async def _cancel_unwanted(self, live: Live, nodes: Mapping[NodeId, ObservedNode]) -> None:
        found = planning.unwanted(live, nodes)
        since = self._unwanted_since
        self._unwanted_since = {key: since.get(key, live.now) for key in sorted(found)}
        for key, first_seen in self._unwanted_since.items():
            if live.now - first_seen >= _UNWANTED_FOR:
                log.info("unwanted_work_found", op=key[0], node=key[1], attempt=key[2])
                self._unwanted_since[key] = live.now  # Said again only if it goes on.
                self._commander.cancel(key)

    def _moment_for(self, now: datetime) -> Callable[[Step], Moment]:
        def moment(step: Step) -> Moment:
            return Moment(now, self._entropy.fraction(), self._timeouts.policy(step, self._policy))

        return moment

    def _room(self) -> Room:
        own = self._commander.own_room
        if trouble := self._bus_trouble():
            return Room(0, because(StepCause.BUS_DOWN, trouble), own, self._frontend)
        return Room(self._commander.room, own=own, frontend=self._frontend)

    def _until_next(self, decided: PassPlan, live: Live) -> timedelta:
        longest = self._pace.busy_every if live.operations else self._pace.idle_every
        if decided.wake_at is None:
            return longest
        return min(max(decided.wake_at - live.now, timedelta()), longest)


def _say_what_ended(before: Step, after: Step) -> None:
    """One line per attempt that is over, with all there is to know of it."""
    if before.state not in (State.RUNNING, State.STOPPING) or after.state in (State.RUNNING, State.STOPPING):
        return
    log.info(
        "attempt_ended",
        op=after.op,
        node=after.node_name,
        kind=after.kind,
        stage=before.stage,
        attempt=after.attempt,
        state=after.state,
        problem=None if after.problem is None else after.problem.code,
        reason=after.reason,
        retry_at=after.wait_until,
    )
