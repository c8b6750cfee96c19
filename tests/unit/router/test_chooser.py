"""What replicas have seen of prompts is known on every frontend, and told once."""

import anyio
import pytest

from remuda.core.ids import FrontendId
from remuda.models.config import ModelConfig
from remuda.router.affinity import PREFIX
from remuda.router.chooser import HotSpots, ReplicaChooser
from remuda.router.live_table import Tables
from remuda.router.table import RoutedModel
from remuda.router.work_checks import tiny_work
from tests.support.scripted_upstreams import route_to, table
from tests.support.shared_lines import SharedLines
from tests.support.waiting import wait_until
from tests.unit.router.frontends import HandClock

pytestmark = pytest.mark.anyio

MODEL = ModelConfig(name="qwen", backend="echo", route_policy="prefix_cache")
ROUTES = tuple(route_to("qwen", index, f"n{index}") for index in range(3))
WINDOWS = tuple(range(1, 11))


def chooser(lines: SharedLines, name: str) -> ReplicaChooser:
    tables = Tables()
    tables.replace(table(RoutedModel(MODEL, ROUTES, listed=True)))
    return ReplicaChooser(tables, HandClock(), lines, FrontendId(name))


def chosen(one: ReplicaChooser) -> tuple[str, str]:
    found = one.by_prefix(MODEL, ROUTES, lambda route: 0, WINDOWS)
    assert found is not None
    return found[0].node_name, found[1]


async def test_frontends_tell_each_other_once_and_without_echo() -> None:
    lines = SharedLines()
    one, two = chooser(lines, "f-1"), chooser(lines, "f-2")
    async with anyio.create_task_group() as tasks:
        await tasks.start(one.run)
        await tasks.start(two.run)
        one.sent(ROUTES[2], WINDOWS, "")
        await wait_until(lambda: chosen(two) == ("n2", PREFIX))
        one.sent(ROUTES[2], WINDOWS, "")  # Nothing new.
        two.sent(ROUTES[2], WINDOWS, "")
        two.sent(ROUTES[1], (7, 8), "")
        await wait_until(lambda: len(lines.sent) == 2)
        tasks.cancel_scope.cancel()
    assert [b'"f-1"' in sent.payload for sent in lines.sent] == [True, False]


async def test_of_replicas_that_left_nothing_is_remembered() -> None:
    one = chooser(SharedLines(), "f-1")
    one.sent(ROUTES[2], WINDOWS, "")
    one._tables.replace(table(RoutedModel(MODEL, ROUTES[:2], listed=True)))
    one.sweep()
    assert chosen(one)[1] != PREFIX


def test_figures_tell_how_much_was_cached() -> None:
    one = chooser(SharedLines(), "f-1")
    one.sent(ROUTES[2], WINDOWS[:5], "")
    one.sent(ROUTES[2], WINDOWS, "")
    assert (one.figures.windows["qwen"], one.figures.matched["qwen"]) == (15, 5)


def test_hot_spot_is_one_that_lasts_and_another_replica_begins_it_anew() -> None:
    hot = HotSpots()
    for at_s in (0.0, 20.0):
        hot.note("qwen", 2, at_s)
    assert hot.lasting(20.0) == {}
    hot.note("qwen", 2, 30.0)
    assert hot.lasting(31.0) == {"qwen": 2}
    hot.note("qwen", 3, 32.0)
    assert hot.lasting(33.0) == {}
    for at_s in (50.0, 62.0):
        hot.note("qwen", 3, at_s)
    assert hot.lasting(62.0) == {"qwen": 3}
    assert hot.lasting(93.0) == {}, "it is over"
    hot.note("qwen", 3, 94.0)
    assert hot.lasting(94.0) == {}


def test_replica_that_is_too_busy_for_its_prompts_makes_a_hot_spot() -> None:
    one = chooser(SharedLines(), "f-1")
    clock = one._clock
    assert isinstance(clock, HandClock)
    one.sent(ROUTES[2], WINDOWS, "")
    for _ in range(4):
        one.by_prefix(MODEL, ROUTES, lambda route: 0, WINDOWS)
        assert one.hot_spots() == {}
        clock.passed_s += 10.0
    for _ in range(4):
        one.by_prefix(MODEL, ROUTES, lambda route: 9 if route is ROUTES[2] else 0, WINDOWS)
        clock.passed_s += 10.0
    assert one.hot_spots() == {"qwen": 3}


def test_prompts_decide_nothing_where_that_is_switched_off() -> None:
    call = tiny_work(MODEL, "r-1", 0)
    assert call is not None
    tables = Tables()
    assert ReplicaChooser(tables, HandClock()).windows(call) != ()
    assert ReplicaChooser(tables, HandClock(), by_prefixes=False).windows(call) == ()
