"""One simulation of operations: builds the world of a seed, lets it storm, and waits for the calm."""

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from remuda.core.errors import RemudaError
from tests.sim.chance import Dice
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.calm import settle
from tests.sim.ops.claims import Claims
from tests.sim.ops.frontends import FrontendHost
from tests.sim.ops.kinds_of_workers import LocalAiWorker, OurWorker
from tests.sim.ops.pace import BRISK, SLOW
from tests.sim.ops.roster import Roster
from tests.sim.ops.storm import Storm
from tests.sim.ops.workers import Held, SimulatedWorker, build_of
from tests.sim.ops.world import Releases, World
from tests.sim.simulation import Outcome
from tests.sim.trace import Trace
from tests.support.clocks import HostClock
from tests.support.op_tables import NODES_MOST, fresh_tables, node_id
from tests.support.virtual_loop import run_virtually

_BACKENDS = ("alpha", "beta", "gamma")


def run_seed(seed: int) -> Outcome:
    """The same seed gives the same trace, whatever ran before it."""
    trace = Trace()
    ended: list[float] = []

    async def main() -> BaseException | None:
        try:
            async with anyio.create_task_group() as tasks:
                world = build_world(seed, trace, tasks)
                with defects_told(world):
                    await _live_through(world)
                tasks.cancel_scope.cancel()
        except Exception as error:
            return innermost(error)
        finally:
            ended.append(anyio.current_time())
        return world.broken

    return Outcome(seed, trace, run_virtually(main), ended[0], story="operations")


def build_world(seed: int, trace: Trace, tasks: TaskGroup) -> World:
    dice, clock = Dice(seed), HostClock()
    pace = BRISK if dice.chance(0.6) else SLOW
    releases = Releases({name: f"sha256:{name}-0" for name in _BACKENDS[: dice.whole(1, 3)]})
    world = World(seed, dice, pace, trace, tasks, clock, fresh_tables(clock), releases)
    bus = SimulatedBus(world)
    world.roster, world.claims = Roster(world), Claims(world)
    fleet = dice.fork("fleet")
    world.frontends = [
        FrontendHost(world, bus, number) for number in range(fleet.weighted({1: 4.0, 2: 4.0, 3: 2.0}))
    ]
    # Small fleets are the more likely: most of what goes wrong needs few to go wrong with.
    nodes = fleet.whole(2, fleet.weighted({5: 14.0, 12: 5.0, NODES_MOST: 1.0}))
    for number in range(nodes):
        worker = _worker(world, bus, fleet, number)
        world.workers[worker.node] = worker
        for backend, version in releases.newest.items():
            if fleet.chance(0.4):
                worker.disk[build_of(backend)] = Held(version)
    trace.event("world", pace.name, f"{len(world.frontends)} frontends", f"{nodes} nodes")
    return world


def _worker(world: World, bus: SimulatedBus, dice: Dice, number: int) -> SimulatedWorker:
    if dice.chance(0.3):
        return LocalAiWorker(world, bus, node_id(number), knows_upgrade=dice.chance(0.5))
    return OurWorker(world, bus, node_id(number))


async def _live_through(world: World) -> None:
    world.tasks.start_soon(world.roster.run)
    for worker in world.workers.values():
        worker.start()
    for frontend in world.frontends:
        world.tasks.start_soon(frontend.run)
    await Storm(world).run()
    await settle(world)


def innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def defects_told(world: World) -> Iterator[None]:
    """Nobody reads the log of a thousand fleets. But what the code under test logs as a defect is one, and
    must not be swallowed by the edge that logs it."""

    def tell(_: object, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        defect = sys.exc_info()[1] if event.get("exc_info") else None
        if defect is not None and not isinstance(defect, RemudaError):
            world.trace.event("DEFECT", event.get("event"), defect)
            world.break_off(defect)
        raise structlog.DropEvent

    configured = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR), processors=[tell])
    try:
        yield
    finally:
        structlog.configure(**configured)
