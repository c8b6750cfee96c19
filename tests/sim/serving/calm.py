"""After the storm: within a bound every model is served, every process has its row and every row its
process."""

import anyio

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.world import ServingWorld

SERVED_WITHIN_S = 1200.0
SETTLED_WITHIN_S = 300.0
_PATIENCE_S = 90.0


async def settle(world: ServingWorld) -> None:
    """Ask for every model until it was served, then ask for nothing and look at what is left."""
    before = dict(world.serving_claims.answers)
    deadline = anyio.current_time() + SERVED_WITHIN_S
    while unserved := [name for name in world.sizes if not _served(world, name, before)]:
        if anyio.current_time() >= deadline:
            world.violated("every_model_is_served", *unserved)
        host = world.dice.pick([host for host in world.hosts if host.up] or world.hosts)
        host.ask(world.dice.pick(unserved), _PATIENCE_S)
        await anyio.sleep(world.pace.look_every_s)
        world.claims.look_at_everything()
    world.trace.event("served")
    await _tidied(world)


def _served(world: ServingWorld, model: str, before: dict[str, int]) -> bool:
    return world.serving_claims.answers[model] > before.get(model, 0)


async def _tidied(world: ServingWorld) -> None:
    deadline = anyio.current_time() + SETTLED_WITHIN_S
    while left := unsettled(world):
        if anyio.current_time() >= deadline:
            world.violated("everything_settles", *left)
        await anyio.sleep(world.pace.look_every_s)
    world.claims.look_at_everything()
    world.trace.event("settled")


def unsettled(world: ServingWorld) -> list[str]:
    """What is not yet as it should be."""
    rows = world.serving_claims.rows
    moving = [
        f"{row.key} on {row.node} is {row.state}"
        for row in rows.values()
        if row.state is not ReplicaState.LOADED
    ]
    running = {
        (process.key, process.instance): process
        for worker in world.machines
        for process in worker.processes.values()
    }
    known = {(row.key, row.instance) for row in rows.values()}
    strays = [f"{process} is nobody's" for which, process in running.items() if which not in known]
    ghosts = [f"{key} is only a row" for key, instance in known if (key, instance) not in running]
    held = [f"{host.id} has {host.serving} requests" for host in world.hosts if host.serving]
    return moving + sorted(strays) + sorted(ghosts) + held
