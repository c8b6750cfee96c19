"""A frontend that is cut off from the store: it serves what it had, and obeys those who are not cut off. The
storms have this, too, but seldom for long enough."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta

import anyio
import pytest

from remuda.router import confirmation
from tests.sim.ops.simulation import defects_told
from tests.sim.ops.world import Weather
from tests.sim.serving.frontends import ServingFrontend
from tests.sim.serving.simulation import as_simulated, begin, build_world
from tests.sim.serving.world import ServingWorld
from tests.sim.trace import Trace
from tests.support.virtual_loop import run_virtually
from tests.support.virtual_ops import time_passes
from tests.support.waiting import wait_until

MODEL = "m0"
Story = Callable[[ServingWorld, ServingFrontend, ServingFrontend], Awaitable[None]]


def told(story: Story) -> None:
    """In calm weather: both frontends have served the model, and the second is cut off from the store."""

    async def main() -> None:
        with ExitStack() as stack:
            async with anyio.create_task_group() as tasks:
                world = build_world(1, Trace(), tasks)
                world.weather, world.keep_alive = Weather(), timedelta(hours=1)
                stack.enter_context(defects_told(world))
                stack.enter_context(as_simulated())
                await begin(world)
                first, second = world.hosts[:2]
                await time_passes(30)
                await answered(world, first)
                await time_passes(15)
                await answered(world, second)
                second.database.cut = True
                await story(world, first, second)
                assert world.broken is None
                tasks.cancel_scope.cancel()

    run_virtually(main)


async def answered(world: ServingWorld, host: ServingFrontend) -> None:
    answers = world.serving_claims.requests.answers
    before = answers[MODEL]
    host.ask(MODEL, 90.0)
    await wait_until(lambda: answers[MODEL] > before, within=100)


def requests_of(world: ServingWorld, host: ServingFrontend) -> int:
    return sum(line.split()[1:3] == ["request", host.id] for line in world.trace.lines)


async def sent_on(world: ServingWorld, host: ServingFrontend) -> int:
    """How often a request to this frontend now is sent on to a replica."""
    before = requests_of(world, host)
    host.ask(MODEL, 5.0)
    await time_passes(10)
    return requests_of(world, host) - before


def test_it_serves_what_it_had_for_as_long_as_that_is_there() -> None:
    async def story(world: ServingWorld, first: ServingFrontend, second: ServingFrontend) -> None:
        await time_passes(120)
        await answered(world, second)
        for machine in world.machines:
            for process in list(machine.processes.values()):
                machine.lose(process, again=False)
        await time_passes(30)
        assert await sent_on(world, second) == 0

    told(story)


def test_it_sends_nothing_to_what_another_frontend_unloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the signal on the bus alone: what is still running is confirmed by its worker."""
    monkeypatch.setattr(confirmation, "unconfirmed", lambda at, now_s: frozenset())

    async def story(world: ServingWorld, first: ServingFrontend, second: ServingFrontend) -> None:
        await time_passes(60)
        first.unload(MODEL)
        await time_passes(10)
        assert await sent_on(world, second) == 0

    told(story)
