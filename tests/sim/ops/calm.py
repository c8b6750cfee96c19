"""After the storm: within a bound everything is over, and no worker does what nobody wants."""

from functools import partial

import anyio

from remuda.core.ids import NodeId
from remuda.ops.model import OpId, Wish
from remuda.store.ops import SqlOpStore
from tests.sim.ops.rows import StepRow
from tests.sim.ops.world import World


async def settle(world: World) -> None:
    live = sum(not row.finished for row in world.claims.operations.values())
    deadline = anyio.current_time() + (live + 1) * world.pace.ended_within_s
    while True:
        await anyio.sleep(world.pace.look_every_s)
        _resume_paused(world)
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
    claims = world.claims
    waiting = {
        row.op for row in claims.steps.values() if not row.state.final and _stays_away(world, row.node)
    }
    left = [
        f"{row.op} on {row.node} is {row.state}: {row.reason}"
        for row in claims.steps.values()
        if not row.state.final and not _may_wait(world, row, waiting)
    ]
    busy = [
        f"{worker} still has {hand.kind} of {hand.op} attempt {hand.attempt} in hand"
        for worker in world.workers.values()
        if worker.life is not None
        for hand in worker.life.hands
    ]
    return left + busy


def _may_wait(world: World, row: StepRow, waiting: set[OpId]) -> bool:
    """For a node that stays away: its own step, and those that follow a canary which is there."""
    return _stays_away(world, row.node) or (row.op in waiting and world.claims.operations[row.op].canary)


def _stays_away(world: World, node: NodeId) -> bool:
    return world.roster.away(node)
