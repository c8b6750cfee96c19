"""After the storm: within a bound everything is over, and no worker does what nobody wants."""

from collections.abc import Sequence
from functools import partial

import anyio

from remuda.ops.model import Wish
from remuda.store.ops import SqlOpStore
from tests.sim.ops.claims import Key
from tests.sim.ops.world import World
from tests.support.op_tables import StepRow


async def settle(world: World) -> None:
    live = sum(not row.finished for row in world.claims.operations.values())
    deadline = anyio.current_time() + (live + 1) * world.pace.ended_within_s
    while True:
        await anyio.sleep(world.pace.look_every_s)
        _resume_paused(world)
        world.claims.what_is_listed_is_soon_done()
        left = unsettled(world)
        if not left:
            world.claims.look_at_everything()
            world.trace.event("settled")
            return
        if anyio.current_time() >= deadline:
            world.violated("everything_ends", *left)


def _resume_paused(world: World) -> None:
    """What people have paused waits for them, and here they come."""
    for row in world.claims.operations.values():
        if row.wish is Wish.PAUSE and not row.finished and world.up:
            world.up[0].command(partial(SqlOpStore.wish, op=row.id, wish=Wish.RUN))


def unsettled(world: World) -> list[str]:
    """What is not yet as it should be."""
    unfinished = [row for row in world.claims.steps.values() if not row.state.final]
    excused = _excused(world, unfinished)
    left = [
        f"{row.op} on {row.node} is {row.state}: {row.reason}" for row in unfinished if row.key not in excused
    ]
    busy = [
        f"{worker} still has {hand.kind} of {hand.op} attempt {hand.attempt} in hand"
        for worker in world.workers.values()
        if worker.life is not None
        for hand in worker.life.hands
    ]
    return left + busy


def _excused(world: World, unfinished: Sequence[StepRow]) -> set[Key]:
    """Those that wait for a node that stays away."""
    return {row.key for row in unfinished if world.roster.away(row.node)}
