"""Decisions are kept for a while, and found whichever frontend has made them."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from remuda.core.ids import FrontendId
from remuda.router.decisions import DecisionLog, Explanations, RoutingDecision
from tests.support.scripted_upstreams import route_to
from tests.support.shared_lines import SharedLines
from tests.unit.router.frontends import HandClock

pytestmark = pytest.mark.anyio

ONE, TWO = FrontendId("f-1"), FrontendId("f-2")


def decision(request_id: str, node: str = "gpu-1") -> RoutingDecision:
    waits, route = (("qwen to be loaded on gpu-1", 5.0),), route_to("qwen", node=node)
    return RoutingDecision(
        request_id, 990.0, 996.0, "qwen", "ada", 200, "", "", route, "", 5.0, waits, (), False, 995.0
    )


def explanations(
    name: FrontendId, lines: SharedLines, log: DecisionLog, alive: Collection[FrontendId] = (ONE, TWO)
) -> Explanations:
    async def frontends() -> Collection[FrontendId]:
        return alive

    return Explanations(name, log, lines, frontends, HandClock(), answered_s=0.05)


@asynccontextmanager
async def running(*each: Explanations) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for one in each:
            await tasks.start(one.run)
        yield
        tasks.cancel_scope.cancel()


def test_only_the_last_ones_are_kept() -> None:
    log = DecisionLog(kept_max=3)
    for number in range(5):
        log.note(decision(f"r-{number}"))
    log.note(decision("r-3", node="gpu-2"))  # Named like one before it.
    assert len(log) == 3
    assert log.find("r-1") is None
    found = log.find("r-3")
    assert found is not None
    assert found.route is not None
    assert found.route.node_name == "gpu-2"


async def test_any_frontend_explains_what_another_has_decided() -> None:
    lines, log = SharedLines(), DecisionLog()
    log.note(decision("r-1"))
    asked, other = explanations(ONE, lines, DecisionLog()), explanations(TWO, lines, log)
    async with running(asked, other):
        found = await asked.find("r-1")
    assert found is not None
    assert (found.frontend, found.node, found.waited_seconds) == (TWO, "gpu-1", 5.0)
    assert (found.first_token_seconds, found.total_seconds) == (5.0, 6.0)
    assert found.at == HandClock().now() - timedelta(seconds=4)
    assert [(wait.cause, wait.seconds) for wait in found.waits] == [("qwen to be loaded on gpu-1", 5.0)]


async def test_what_no_frontend_knows_is_not_waited_for() -> None:
    lines = SharedLines()
    asked, other = explanations(ONE, lines, DecisionLog()), explanations(TWO, lines, DecisionLog())
    async with running(asked, other):
        assert await asked.find("nosuch") is None
        assert await asked.find("nosuch") is None


async def test_a_frontend_that_does_not_answer_is_given_up() -> None:
    asked = explanations(ONE, SharedLines(), DecisionLog())
    async with running(asked):
        assert await asked.find("nosuch") is None


async def test_while_the_bus_is_down_only_own_decisions_are_told() -> None:
    lines, log = SharedLines(), DecisionLog()
    log.note(decision("r-1"))
    asked = explanations(ONE, lines, log)
    async with running(asked):
        lines.down = True
        assert await asked.find("r-2") is None
        assert await asked.find("r-1") is not None
