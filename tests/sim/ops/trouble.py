"""What goes wrong in every simulation with operations: with workers, with frontends, and with what they
share. It goes wrong for a while, and is repaired when the storm is over at the latest."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta

import anyio

from tests.sim.ops.workers import SimulatedWorker
from tests.sim.ops.world import Weather, World

EVENTS_LEAST = 200
FAULTS_LEAST = 10

Deed = Callable[[], None]


class Trouble(ABC):
    gone_for_good = 0.0  # How likely a worker that dies never comes back.

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice.fork("storm")
        self._over = False
        self._undo: list[Deed] = []
        self._kinds = self.kinds()

    @abstractmethod
    def kinds(self) -> Mapping[Deed, float]:
        """What may happen, and how likely each is beside the others."""

    async def rage(self, deeds: int, lasting_s: float = 0.0) -> None:
        """So many deeds and so long at least. Returns when everything is repaired that is to be."""
        trace, until = self._world.trace, anyio.current_time() + lasting_s
        while (
            deeds > 0
            or anyio.current_time() < until
            or len(trace.lines) < EVENTS_LEAST
            or trace.fault_count < FAULTS_LEAST
        ):
            deeds -= 1
            await anyio.sleep(self.gap_s())
            self._dice.weighted(self._kinds)()
            self._world.claims.look_at_everything()
        self._over = True
        for undo in self._undo:
            undo()
        self._world.weather = Weather()
        trace.event("calm")

    def gap_s(self) -> float:
        """Until the next deed."""
        return float(self._world.pace.gap_most_s ** self._dice.fraction())

    def for_a_while(self, span_s: float, undo: Deed) -> None:
        async def later() -> None:
            await anyio.sleep(span_s)
            if not self._over:
                undo()

        self._undo.append(undo)
        self._world.tasks.start_soon(later)

    # With workers.

    def away_s(self) -> float:
        return 1.0 + float(self._world.pace.away_most_s ** self._dice.fraction())

    def kill_worker(self) -> None:
        if running := [one for one in self._world.workers.values() if one.life is not None]:
            victim = self._dice.pick(running)
            self._world.trace.fault("worker_killed", victim)
            victim.crash()
            victim.gone_for_good = self._dice.chance(self.gone_for_good)
            if not victim.gone_for_good:
                self.for_a_while(self.away_s(), lambda: self._start(victim))

    def _start(self, worker: SimulatedWorker) -> None:
        if worker.life is None and worker.node in self._world.workers:
            worker.start()

    def isolate_worker(self) -> None:
        if self._world.workers:
            worker = self._dice.pick(list(self._world.workers.values()))
            self._world.trace.fault("worker_isolated", worker)
            worker.isolated = True
            self.for_a_while(self.away_s(), worker.rejoin)

    # With frontends, and with what they share.

    def kill_frontend(self) -> None:
        if up := self._world.up:
            self._dice.pick(up).crash("at some moment")

    def set_clock(self) -> None:
        frontend = self._dice.pick(self._world.frontends)
        frontend.clock.error += timedelta(seconds=self._dice.pick((-86400.0, -60.0, 60.0, 86400.0)))
        self._world.trace.fault("clock_set", frontend.id, frontend.clock.error)

    def _outage_s(self) -> float:
        return 1.0 + float((10 * self._world.pace.heartbeat_s) ** self._dice.fraction())

    def cut_store(self) -> None:
        frontend = self._dice.pick(self._world.frontends)
        self._world.trace.fault("store_cut", frontend.id)
        frontend.database.cut = True
        self.for_a_while(self._outage_s(), lambda: setattr(frontend.database, "cut", False))

    def take_store_away(self) -> None:
        self._world.trace.fault("store_away")
        self._world.store_up = False
        self.for_a_while(self._outage_s(), lambda: setattr(self._world, "store_up", True))

    def take_bus_away(self) -> None:
        self._world.trace.fault("bus_away")
        self._world.drop_bus()
        self.for_a_while(self._outage_s(), lambda: setattr(self._world, "bus_up", True))
