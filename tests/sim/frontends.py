"""A frontend's process: lives, dies and lives again. Inside it runs the real fleet code."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import anyio
from anyio.abc import TaskGroup

from remuda.assembly.bus import BusStopSender
from remuda.bus.auth import account_user
from remuda.bus.client import BUS_BACKOFF, Bus
from remuda.core import limits
from remuda.core.errors import RemudaError, StoreUnusable
from remuda.core.ids import FrontendId
from remuda.fleet.health import Standing
from remuda.fleet.heartbeats import HeartbeatIntake, Listener
from remuda.fleet.registry import Registry
from tests.sim.gateway import Answer, Call, answer
from tests.sim.store import StoreOfFrontend
from tests.sim.world import BUS_URL, THRESHOLDS, World
from tests.support.clocks import HostClock
from tests.support.nodes import TOKENS

_RESTART_S = 2.0


@dataclass(slots=True, eq=False)
class Exchange:
    """A request in the hands of a frontend. No answer when it is over: the connection was reset."""

    over: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None


class FrontendHost:
    def __init__(self, world: World, number: int) -> None:
        self.id = FrontendId(f"frontend-{number}")
        self.dice = world.dice.fork(self.id)
        self.clock = HostClock()
        self.store = StoreOfFrontend(world, self.dice)
        self.bus_cut = False
        self._world = world
        self._tasks: TaskGroup | None = None
        self._open: list[Exchange] = []
        self._registry: Registry | None = None

    @property
    def up(self) -> bool:
        return self._tasks is not None

    @property
    def registry(self) -> Registry:
        assert self._registry is not None, "asked only of a frontend that is up"
        return self._registry

    @property
    def hears(self) -> bool:
        """Whether nothing keeps it from hearing. It may take a moment until it knows."""
        return self.up and not (self.store.cut or self.bus_cut)

    async def run(self) -> None:
        """Be started again and again, as a service manager does."""
        while True:
            try:
                await self.store.revoked()
            except StoreUnusable:
                await anyio.sleep(_RESTART_S)
                continue
            await self._live()
            await anyio.sleep(self.dice.between(1.0, 20.0))

    def crash(self) -> None:
        assert self._tasks is not None, "only the living die"
        self._tasks.cancel_scope.cancel()
        self._tasks = self._registry = None
        for exchange in self._open:  # Their own tasks would do it too, but in no certain order.
            exchange.over.set()
        self._open.clear()
        self._world.note_hearing()

    def accept(self, call: Call) -> Exchange:
        async def answered() -> Answer:
            return await answer(registry, self.dice, call)

        registry = self.registry
        return self._serve(answered)

    def command(self, work: Callable[[Registry], Awaitable[object]]) -> Exchange:
        """An admin's request."""

        async def answered() -> Answer:
            try:
                await work(registry)
            except RemudaError as error:
                return error.http_status, error.message.encode()
            return 200, b""

        registry = self.registry
        return self._serve(answered)

    def _serve(self, handle: Callable[[], Awaitable[Answer]]) -> Exchange:
        exchange = Exchange()

        async def serve() -> None:
            exchange.answer = await handle()
            exchange.over.set()
            self._open.remove(exchange)

        assert self._tasks is not None, "asked only of a frontend that is up"
        self._open.append(exchange)
        self._tasks.start_soon(serve)
        return exchange

    async def _live(self) -> None:
        world = self._world
        bus = Bus(
            BUS_URL,
            account_user(world.account, self.id, self.clock),
            name=self.id,
            backoff=BUS_BACKOFF,
            entropy=self.dice,
            clock=self.clock,
            make_link=world.broker.link,
        )

        async def hear_bus() -> None:
            await bus.round_trip(timedelta(seconds=limits.LIVENESS_ROUND_TRIP_S))

        intake = HeartbeatIntake(self.store)
        ear = Listener(self.id, self.store, hear_bus, THRESHOLDS, self._observe)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.run)
            with anyio.move_on_after(limits.BUS_AT_START_S):
                await bus.wait_connected()
            tasks.start_soon(intake.run)
            tasks.start_soon(ear.run)
            self._registry = Registry(
                self.store,
                intake,
                world.issuer,
                BusStopSender(bus),
                world.policy,
                THRESHOLDS,
                self.dice,
                TOKENS,
            )
            self._tasks = tasks
            world.trace.event("up", self.id)
            world.note_hearing()

    def _observe(self, standings: Sequence[Standing]) -> None:
        self._world.trace.event("judged", self.id, *(f"{s.node.name}={s.status}" for s in standings))
