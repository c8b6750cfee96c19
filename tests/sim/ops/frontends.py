"""A frontend's process: lives, dies between any two awaits and lives again. Inside runs the real code."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup

from remuda.core.errors import BusUnusable, RemudaError
from remuda.core.ids import FrontendId
from remuda.fleet.health import Standing
from remuda.ops.broadcast import ChangeSignal
from remuda.ops.commander import BusCommander
from remuda.ops.inventories import Inventories
from remuda.ops.model import Outcome, Step, StepKey, Verb
from remuda.ops.progress import LiveProgress
from remuda.ops.progress_board import ProgressBoard, ProgressSubscription
from remuda.ops.reconciler import Reconciler
from remuda.store.ops import SqlOpStore
from tests.sim.chance import Dice
from tests.sim.ops.bus import LinesOfFrontend, SimulatedBus
from tests.sim.ops.store import DatabaseOfFrontend
from tests.sim.ops.world import World
from tests.support.clocks import HostClock

_REQUESTS_MOST = 1000


class WatchedBoard(ProgressBoard):
    def __init__(self, world: World, frontend: str, store: SqlOpStore, clock: HostClock) -> None:
        super().__init__(store, clock, world.pace.write_progress_every)
        self._world = world
        self._frontend = frontend

    def _set(self, key: StepKey, live: LiveProgress) -> None:
        self._world.claims.shown(self._frontend, key, live)
        super()._set(key, live)


class InterruptedCommander(BusCommander):
    """The bus is down in the very moment in which a proof is to be sent: what is rare, happens here."""

    def __init__(self, world: World, dice: Dice, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._world = world
        self._dice = dice

    async def _outcome(self, verb: Verb, step: Step) -> Outcome | None:
        if verb is Verb.PROVE and self._dice.chance(self._world.weather.proof_interrupted):
            self._world.trace.fault("proof_interrupted", step.op, step.node)
            return Outcome(step.attempt, BusUnusable("the bus is down").problem())
        return await super()._outcome(verb, step)


class FrontendHost:
    def __init__(self, world: World, bus: SimulatedBus, number: int) -> None:
        self.id = FrontendId(f"frontend-{number}")
        self.dice = world.dice.fork(self.id)
        self.clock = HostClock()
        self.database = DatabaseOfFrontend(world, self.dice, self.crash)
        self.lives = 0
        self._world = world
        self._bus = bus
        self._signal: ChangeSignal | None = None
        self._tasks: TaskGroup | None = None

    @property
    def up(self) -> bool:
        return self._tasks is not None

    def wake(self) -> None:
        if self._signal is not None:
            self._signal.notify()

    def crash(self, when: str) -> None:
        if self._tasks is None:
            return
        self._world.trace.fault("frontend_died", self.id, when)
        self._tasks.cancel_scope.cancel()
        self._tasks = self._signal = None

    def command(self, work: Callable[[SqlOpStore], Awaitable[object]]) -> None:
        """An admin's request. It dies with the frontend, and its answer may be lost."""
        assert self._tasks is not None, "asked only of a frontend that is up"
        self._tasks.start_soon(self._serve, work)

    async def _serve(self, work: Callable[[SqlOpStore], Awaitable[object]]) -> None:
        try:
            await work(SqlOpStore(self.database))
        except RemudaError as error:
            self._world.trace.event("refused", error.message)
        self.wake()

    async def run(self) -> None:
        """Be started again and again, as a service manager does."""
        while True:
            await self._live()
            await anyio.sleep(self.dice.between(1.0, self._world.pace.down_most_s))

    async def standings(self) -> Sequence[Standing]:
        await self.database.travel()
        return self._world.roster.standings()

    def trouble(self) -> str:
        return "" if self._world.bus_up else "the bus is down"

    async def _live(self) -> None:
        pace, clock, store = self._world.pace, self.clock, SqlOpStore(self.database)
        lines = LinesOfFrontend(self._world, self._bus, self.dice, self.crash)
        signal = ChangeSignal(lines, self.id, pace.signal_gap)
        self.lives += 1
        board = WatchedBoard(self._world, f"{self.id} life {self.lives}", store, clock)
        progress = ProgressSubscription(lines, board.take)
        commander = InterruptedCommander(
            self._world,
            self.dice,
            lines,
            store,
            board,
            progress,
            clock,
            timeouts=pace.timeouts,
            at_once_max=_REQUESTS_MOST,
            bus_trouble=self.trouble,
            signal=signal,
        )
        inventories = Inventories(lines, store, clock, signal, pace.list_every)
        reconciler = Reconciler(
            store,
            self.standings,
            commander,
            inventories,
            signal,
            frontend=self.id,
            clock=clock,
            entropy=self.dice,
            timeouts=pace.timeouts,
            policy=pace.policy,
            bus_trouble=self.trouble,
            pace=pace.looks,
        )
        async with anyio.create_task_group() as tasks:
            self._tasks, self._signal = tasks, signal
            self._world.trace.event("up", self.id)
            for runner in (signal.run, board.run, commander.run, inventories.run, reconciler.run):
                await tasks.start(runner)
            if self.lives % 2:
                tasks.start_soon(_watch, progress)
        lines.hang_up()


async def _watch(progress: ProgressSubscription) -> None:
    """Somebody looks at this frontend for as long as it lives."""
    async with progress.listening():
        await anyio.sleep_forever()
