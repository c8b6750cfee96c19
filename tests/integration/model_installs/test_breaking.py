"""A network that breaks every connection after a while brings a model all the same."""

import pytest
from aiohttp import web

from remuda.ops.model import State
from tests.support.hub import HubServer
from tests.support.images import noise
from tests.support.model_rig import SOON, ModelFrontend
from tests.support.models import tiny_model

pytestmark = pytest.mark.anyio

BROUGHT_AT_ONCE = 200_000


class Wifi:
    """After each connection that brings something come so many that bring nothing."""

    def __init__(self, hub: HubServer, in_vain: int) -> None:
        self._hub = hub
        self._in_vain = in_vain
        self._connections = 0

    async def __call__(self, request: web.Request) -> None:
        if "Range" not in request.headers and self._connections:
            return  # It asks what there is.
        brings = self._connections % (1 + self._in_vain) == 0
        self._hub.break_after = BROUGHT_AT_ONCE if brings else 0
        self._connections += 1


async def test_more_breaks_than_failures_are_allowed_end_with_the_model(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    content = tiny_model().read_bytes() + noise(12 * BROUGHT_AT_ONCE, 3)
    url = hub.add("/m.gguf", content)
    hub.before = Wifi(hub, 2)

    op = await frontend.install(url)
    model = await frontend.installed(op)

    step = await frontend.step(op)
    assert step.attempt > 10 > SOON.failures_max
    assert model.manifest is not None
    assert model.manifest.size == len(content)
    assert hub.bytes_sent < 1.2 * len(content), "what came was kept"


async def test_one_that_brings_nothing_more_is_given_up(frontend: ModelFrontend, hub: HubServer) -> None:
    url = hub.add("/m.gguf", noise(2 * BROUGHT_AT_ONCE, 3))
    hub.before = Wifi(hub, 1000)

    step = await frontend.ended(await frontend.install(url))

    assert step.state is State.FAILED
    assert step.problem is not None
    assert step.problem.kept_bytes == BROUGHT_AT_ONCE
    assert step.attempt == 1 + SOON.failures_max
