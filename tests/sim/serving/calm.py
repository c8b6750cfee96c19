"""After the storm: within a bound every model is served, every process has its row and every row its
process."""

from collections import Counter
from collections.abc import Mapping

import anyio

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.configs import model_text
from tests.sim.serving.world import ServingWorld
from tests.support.op_tables import ReplicaRow

SERVED_WITHIN_S = 600.0  # Answers that are lost, loads that hang and nodes that are away have an end by then.
SETTLED_WITHIN_S = 300.0
LEAST_WITHIN_S = 420.0  # A pause after loads that failed, and another load.
_PATIENCE_S = 90.0
_MANY = 20  # Machines, of which each has room for any model.


async def settle(world: ServingWorld) -> None:
    """Wait for what is always to be loaded; ask for every model until it was served; then ask for nothing and
    look at what is left."""
    await _least_is_there(world)
    answers = world.serving_claims.requests.answers
    before = dict(answers)
    deadline = anyio.current_time() + SERVED_WITHIN_S * world.size.rests.times
    while unserved := [name for name in world.sizes if answers[name] <= before.get(name, 0)]:
        if anyio.current_time() >= deadline:
            world.violated("every_model_is_served", *unserved)
        _ask(world, world.dice.pick(unserved))
        await anyio.sleep(world.pace.look_every_s)
        world.claims.look_at_everything()
    world.trace.event("served")
    await _tidied(world)


async def _least_is_there(world: ServingWorld) -> None:
    """Some models are always to be loaded, and nobody asks for them. Then none is, or others had no room."""
    least = _least_of(world)
    await _configured(world, dict.fromkeys(world.sizes, 0) | least)
    deadline = anyio.current_time() + LEAST_WITHIN_S * world.size.rests.times
    while lacking := _lacking(world, least):
        if anyio.current_time() >= deadline:
            world.violated("the_least_is_restored", *lacking, *world.serving_claims.rows.values())
        await anyio.sleep(world.pace.look_every_s)
    world.trace.event("least there", least)
    await _configured(world, dict.fromkeys(world.sizes, 0))


def _least_of(world: ServingWorld) -> dict[str, int]:
    """One of the first model; among many machines two of every third."""
    names = list(world.sizes)
    if len(world.machines) < _MANY:
        return {names[0]: 1}
    return dict.fromkeys(names[::3], 2)


def _lacking(world: ServingWorld, least: Mapping[str, int]) -> list[str]:
    loaded = Counter(
        row.key.model
        for row in world.serving_claims.rows.values()
        if row.state is ReplicaState.LOADED and world.serving_claims.runs(row)
    )
    return [name for name, count in least.items() if loaded[name] < count]


async def _configured(world: ServingWorld, least: Mapping[str, int]) -> None:
    """Frontends that are just starting take no requests: they are asked until it is so."""
    models = world.serving_claims.models
    deadline = anyio.current_time() + SETTLED_WITHIN_S * world.size.rests.times

    def lacking() -> list[str]:
        return [
            name
            for name, count in least.items()
            if (now := models[name].now) is None
            or now.least != count
            or now.pinned
            or name in world.serving_claims.declared
        ]

    while others := lacking():
        if anyio.current_time() >= deadline:
            world.violated("models_can_be_configured", *others)
        for name in others:
            if up := [host for host in world.hosts if host.up]:
                host = world.dice.pick(up)
                host.configure(model_text(name, least=least[name], group=world.group_of(name)))
                if name in world.serving_claims.declared:
                    host.declare(name, None)
        await anyio.sleep(world.pace.look_every_s)


def _ask(world: ServingWorld, model: str) -> None:
    if up := [host for host in world.hosts if host.up]:
        host = world.dice.pick(up)
        if world.serving_claims.models[model].now is None:
            host.configure(model_text(model, group=world.group_of(model)))
        host.ask(model, _PATIENCE_S)


async def _tidied(world: ServingWorld) -> None:
    deadline = anyio.current_time() + SETTLED_WITHIN_S * world.size.rests.times
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
        if not _lost(world, row) and (row.state is not ReplicaState.LOADED or idle_go or row.op in unloaded)
    ]


def _lost(world: ServingWorld, row: ReplicaRow) -> bool:
    """Its machine never came back. It is on record for a while, as of any that is silent."""
    worker = world.workers.get(row.node)
    return worker is not None and worker.life is None


def _strangers(world: ServingWorld) -> list[str]:
    """Processes without rows, and rows without processes."""
    rows = world.serving_claims.rows.values()
    running = {
        (worker.node, process.key): process
        for worker in world.workers_there
        for process in worker.processes.values()
    }
    known = {(row.node, row.key): row.instance for row in rows if not _lost(world, row)}
    strays = [
        f"{process} is nobody's"
        for place, process in running.items()
        if known.get(place) != (process.instance if process.worker.reports else "")
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
