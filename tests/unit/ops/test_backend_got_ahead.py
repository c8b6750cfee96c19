"""A worker's connection to its registry that breaks again and again, each time a little later."""

from typing import Any

import pytest

from remuda.core.errors import Problem
from remuda.ops.model import State, Verb
from remuda.wire.backends import BackendInstallReply
from remuda.wire.codec import Message
from tests.support.virtual_ops import World, begun, outcome, send, settled, time_passes, virtually

BROKE = BackendInstallReply(error="layer sha256:12 broke off", code="registry_failed")


class BreakingRegistry:
    """Of which each attempt brings so many megabytes more, until all of it has come."""

    def __init__(self, world: World, breaks: int, **told: Any) -> None:
        self._world = world
        self._breaks = breaks
        self._told = {"phase": "downloading", "overall": 1.0, **told}
        self.attempts = 0

    async def __call__(self, payload: bytes) -> Message:
        self.attempts += 1
        event = {"seq": 1, "current_bytes": self.attempts << 20, **self._told}
        await self._world.worker.tell("op-1", **event)
        return BROKE if self.attempts <= self._breaks else BackendInstallReply(success=True)


@pytest.mark.parametrize(
    ("told", "kept_bytes"),
    [({}, 1 << 20), ({"phase": "extracting"}, 0), ({"seq": 0, "current": "1.0 MiB", "total": "9.0 MiB"}, 0)],
)
def test_a_failure_says_what_a_worker_that_keeps_it_has_got(told: dict[str, Any], kept_bytes: int) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", BreakingRegistry(world, 1, **told))
        await send(world, await begun(world), Verb.INSTALL)
        await settled(world)
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.kept_bytes == kept_bytes

    virtually(test)


def test_an_install_that_gets_ahead_ends_however_often_it_breaks() -> None:
    async def test(world: World) -> None:
        registry = BreakingRegistry(world, 25)
        await world.worker.on("backend.install", registry)
        await world.frontend.submit([world.worker.node])
        await time_passes(600)
        step = await world.frontend.step()
        assert (step.state, registry.attempts) == (State.SUCCEEDED, 26)

    virtually(test, reconciles=True)


def test_one_that_does_not_get_ahead_is_given_up() -> None:
    async def test(world: World) -> None:
        registry = BreakingRegistry(world, 100, current_bytes=1 << 20)
        await world.worker.on("backend.install", registry)
        await world.frontend.submit([world.worker.node])
        await time_passes(3 * 3600)
        step = await world.frontend.step()
        assert step.state is State.FAILED
        assert registry.attempts < 15

    virtually(test, reconciles=True)
