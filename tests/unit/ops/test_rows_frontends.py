"""Two frontends at the same operation."""

import pytest

from remuda.ops.model import State
from remuda.ops.ports import Live
from tests.support.clocks import HostClock
from tests.support.ops_rig import done, ops_frontend
from tests.support.virtual_ops import World, connected, time_passes, virtually


def test_d2_18_who_looked_before_another_began_does_not_send_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        clock = HostClock()
        async with (
            connected(world.broker, clock, "second") as bus,
            ops_frontend(bus, world.database, clock, name="frontend-2", reconciles=False) as second,
        ):
            await world.frontend.submit([world.worker.node])
            seen_early = await second.store.live()

            async def live() -> Live:
                return seen_early

            monkeypatch.setattr(second.store, "live", live)
            await world.frontend.reconciler.pass_once()
            await second.reconciler.pass_once()
            await time_passes(5)
            assert world.worker.times("backend.install") == 1
            step = await world.frontend.step()
            assert (step.state, step.attempt) == (State.RUNNING, 1)

    virtually(test)
