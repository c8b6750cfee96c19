"""One simulation of serving: builds the world of a seed, lets it storm, and waits for the calm."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

import anyio
import pytest
from anyio.abc import TaskGroup

from remuda.fleet import node_views
from remuda.models.reading import read_model
from remuda.ops import reconciler
from remuda.router import cold_path, live_table, usage
from remuda.scheduler import catalogue, demand, memory_keeper, replica_keeper, seen_facts, upkeep
from remuda.scheduler.model import StoredModel
from remuda.store.replicas import SqlModelStore
from remuda.wire.codec import decode
from remuda.wire.nodes import ModelFile
from tests.sim.chance import Dice
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.simulation import defects_told, innermost
from tests.sim.ops.world import Releases
from tests.sim.serving.calm import settle
from tests.sim.serving.claims import ServingClaims
from tests.sim.serving.configs import ZONE, model_text
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.remembered_nodes import RememberedNodes
from tests.sim.serving.roster import ServingRoster
from tests.sim.serving.sizes import A_DAY, AN_HOUR, DENSE, SMALL, Rests, Size
from tests.sim.serving.storm import Storm
from tests.sim.serving.workers import Memory, PeerWorker, ServingWorker
from tests.sim.serving.world import GB, STORMY, ServingWorld
from tests.sim.simulation import Outcome
from tests.sim.trace import Trace
from tests.support.clocks import HostClock
from tests.support.inline_database import InlineDatabase
from tests.support.op_tables import fresh_tables, node_id
from tests.support.virtual_loop import run_virtually

T = TypeVar("T")

_LOOK_S = 6.0
_REPORTS_KEPT = 1000
_KEEP_ALIVE = (timedelta(seconds=40), timedelta(minutes=30))


def run_hour(seed: int) -> Outcome:
    """Twenty mixed machines, and an hour of storm."""
    return replace(run_seed(seed, AN_HOUR), story="hour")


def run_day(seed: int) -> Outcome:
    """Three hundred mixed machines, and a day of storm."""
    return replace(run_seed(seed, A_DAY), story="day")


def run_dense(seed: int) -> Outcome:
    """A few machines, to which everything happens that can."""
    return replace(run_seed(seed, DENSE), story="dense")


def run_seed(seed: int, size: Size = SMALL) -> Outcome:
    """The same seed gives the same trace, whatever ran before it."""
    trace = Trace()
    ended: list[float] = []

    async def main() -> BaseException | None:
        world: ServingWorld | None = None
        try:
            with ExitStack() as stack:  # Left after the last task: some take a moment to end.
                async with anyio.create_task_group() as tasks:
                    world = build_world(seed, trace, tasks, size)
                    stack.enter_context(defects_told(world))
                    stack.enter_context(as_simulated(size.rests))
                    await _live_through(world)
                    tasks.cancel_scope.cancel()
        except Exception as error:
            # Whoever is surprised by the end of the world is not what ended it.
            return innermost(error) if world is None or world.broken is None else world.broken
        finally:
            ended.append(anyio.current_time())
        assert world is not None, "else something was raised"
        return world.broken

    return Outcome(seed, trace, run_virtually(main), ended[0], story="serving")


def build_world(seed: int, trace: Trace, tasks: TaskGroup, size: Size = SMALL) -> ServingWorld:
    dice, clock = Dice(seed), HostClock()
    tables = fresh_tables(clock, 4 * size.machines[1])
    world = ServingWorld(seed, dice, size.pace, trace, tasks, clock, tables, Releases({}), STORMY)
    bus = SimulatedBus(world)
    fleet = dice.fork("fleet")
    world.size = size
    world.keep_alive = fleet.pick(_KEEP_ALIVE)
    world.sizes = {f"m{number}": fleet.whole(3, 12) * GB for number in range(fleet.whole(*size.models))}
    world.files = tuple(ModelFile(path=f"{model}.gguf", size=size) for model, size in world.sizes.items())
    world.shares = {name: fleet.pick(size.measured) for name in world.sizes if len(size.measured) > 1}
    world.frontends = [ServingFrontend(world, bus, number) for number in range(fleet.pick((2, 2, 3)))]
    world.machines = _machines(world, bus, fleet)
    world.workers = {worker.node: worker for worker in world.machines}
    world.shared = not all(worker.reports for worker in world.machines)
    world.roster, world.claims = ServingRoster(world), ServingClaims(world)
    trace.event("world", f"{len(world.frontends)} frontends", *map(str, world.machines), world.sizes)
    return world


def _machines(world: ServingWorld, bus: SimulatedBus, dice: Dice) -> list[ServingWorker]:
    """Each has room for any model; often not for two. The first always has what the choosy ask for."""
    least, most = (15, 20) if dice.chance(0.6) else (18, 40)
    machines: list[ServingWorker] = []
    for number in range(dice.whole(*world.size.machines)):
        kind = PeerWorker if dice.chance(world.size.peers) else ServingWorker
        # The largest model, with what a driver takes beside it.
        vram_bytes = max(dice.whole(least, most), 16) * GB if dice.chance(0.4) else 0
        memory = Memory(dice.whole(least, most) * GB, vram_bytes)
        labels = ZONE if not number or dice.chance(world.size.zoned) else {}
        machines.append(kind(world, bus, node_id(number), memory, labels))
    return machines


async def begin(world: ServingWorld) -> None:
    """Models are configured, machines and frontends come up."""
    models = SqlModelStore(InlineDatabase(world.tables.connections))
    for number, name in enumerate(world.sizes):
        text = model_text(name, zoned=number % 3 == 2, group=world.group_of(name))
        await models.put_model(StoredModel(name, text, read_model(text).revision, "added"))
    world.claims.after_write()
    world.tasks.start_soon(world.roster.run)
    for worker in world.machines:
        worker.start()
    for frontend in world.frontends:
        world.tasks.start_soon(frontend.run)


async def _live_through(world: ServingWorld) -> None:
    await begin(world)
    await Storm(world).run()
    await settle(world)
    for worker in world.machines:
        worker.isolated = True  # Whoever still speaks to it speaks to nobody.


@contextmanager
def as_simulated(rests: Rests = SMALL.rests) -> Iterator[None]:
    """In virtual time nothing runs beside the loop; and those who wait look less often, since each look is a
    transaction, and a thousand fleets make many. With `rests.after_s` those who hear of changes do, too."""

    async def run_sync(work: Callable[..., T], *given: object) -> T:
        return work(*given)

    with pytest.MonkeyPatch.context() as patch:
        # Each is read by all frontends.
        patch.setattr(node_views, "decode", lru_cache(_REPORTS_KEPT)(decode))
        remembered = RememberedNodes()
        patch.setattr(node_views.ObservedNodes, "of", lambda _, *told: remembered.of(*told))
        patch.setattr(catalogue.ModelCatalogue, "_weights", lambda *_: (seen_facts.Weights(), False))
        for module in (catalogue, live_table):
            patch.setattr(module, "run_sync", run_sync)
        patch.setattr(demand, "_SHARED_S", _LOOK_S)
        patch.setattr(cold_path, "_LOOK_S", _LOOK_S)
        patch.setattr(upkeep, "_EVERY_S", 2 * rests.look_s)
        patch.setattr(replica_keeper, "_EVERY_S", 2 * rests.look_s)
        patch.setattr(memory_keeper, "_EVERY_S", 3 * rests.look_s)
        patch.setattr(usage, "_LOOK_S", rests.times)
        if rest_s := rests.after_s:
            patch.setattr(live_table, "_GAP_S", rest_s)
            patch.setattr(replica_keeper, "_GAP_S", rest_s)
            patch.setattr(reconciler, "_REST_MIN", timedelta(seconds=rest_s))
        yield
