"""After the storm: within a bound every model is served, every process has its row and every row its
process."""

import anyio

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.configs import model_text
from tests.sim.serving.world import ServingWorld

SERVED_WITHIN_S = 600.0  # Answers that are lost, loads that hang and nodes that are away have an end by then.
SETTLED_WITHIN_S = 300.0
_PATIENCE_S = 90.0


async def settle(world: ServingWorld) -> None:
    """Ask for every model until it was served, then ask for nothing and look at what is left."""
    answers = world.serving_claims.requests.answers
    before = dict(answers)
    deadline = anyio.current_time() + SERVED_WITHIN_S
    while unserved := [name for name in world.sizes if answers[name] <= before.get(name, 0)]:
        if anyio.current_time() >= deadline:
            world.violated("every_model_is_served", *unserved)
        _ask(world, world.dice.pick(unserved))
        await anyio.sleep(world.pace.look_every_s)
        world.claims.look_at_everything()
    world.trace.event("served")
    await _tidied(world)


def _ask(world: ServingWorld, model: str) -> None:
    if up := [host for host in world.hosts if host.up]:
        host = world.dice.pick(up)
        if world.serving_claims.models[model].now is None:
            host.configure(model_text(model))
        host.ask(model, _PATIENCE_S)


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
    held = [f"{host.id} has {host.serving} requests" for host in world.hosts if host.serving]
    return _rows_too_many(world) + _strangers(world) + held + _rumours(world)


def _rows_too_many(world: ServingWorld) -> list[str]:
    idle_go = world.keep_alive.total_seconds() < SETTLED_WITHIN_S / 2
    rows, unloaded = world.serving_claims.rows.values(), world.serving_claims.unloaded
    return [
        f"{row.key} on {row.node} is {row.state}"
        for row in rows
        if row.state is not ReplicaState.LOADED or idle_go or row.op in unloaded
    ]


def _strangers(world: ServingWorld) -> list[str]:
    """Processes without rows, and rows without processes. Of a peer's processes only it knows."""
    rows = world.serving_claims.rows.values()
    running = {
        (worker.node, process.key): process
        for worker in world.workers_there
        for process in worker.processes.values()
    }
    known = {(row.node, row.key): row.instance for row in rows}
    strays = [
        f"{process} is nobody's"
        for place, process in running.items()
        if process.worker.reports and known.get(place) != process.instance
    ]
    ghosts = [
        f"{key} is only a row"
        for (node, key), instance in known.items()
        if (node, key) not in running or instance not in ("", running[node, key].instance)
    ]
    return strays + ghosts


def _rumours(world: ServingWorld) -> list[str]:
    return [
        f"{host.id} believes that {count} requests are with {key}"
        for host in world.hosts
        for key in world.serving_claims.rows
        if (count := host.heard_of(key))
    ]
