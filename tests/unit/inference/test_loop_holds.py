"""At every place where a client's bytes decide how long the event loop is held, they decide it within bounds.

Counted in slices, after each of which others have a turn; `python -m bench.loop_holds` measures them.
"""

from datetime import timedelta
from itertools import islice

import anyio
import pytest
from anyio.lowlevel import checkpoint
from bench.loop_holds import PLACES, Place

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, RemudaError, Unavailable
from remuda.core.slices import SLICE_STEPS, Budget, Sliced, slice_count
from remuda.inference.large_bodies import Slicer
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio
BEYOND = [place for place in PLACES if place.beyond is not None]


def _name(place: Place) -> str:
    return place.name


@pytest.mark.parametrize("place", PLACES, ids=_name)
def test_the_largest_input_is_worked_on_in_slices(place: Place) -> None:
    _, count = slice_count(place.largest())

    assert count >= place.slices_min


@pytest.mark.parametrize("place", BEYOND, ids=_name)
def test_more_is_refused_before_much_is_done(place: Place) -> None:
    assert place.beyond is not None
    work = place.beyond()

    with pytest.raises(RemudaError) as refused:
        list(islice(work, place.refused_within_slices))

    assert refused.value.http_status == 400


def _steps(count: int, each: int = 1) -> Sliced[int]:
    budget = Budget("counting", 1 << 30)
    for _ in range(count):
        if budget.spend(each):
            yield
    return budget.spent


def test_a_budget_pauses_after_every_slice_and_ends_where_it_is_used_up() -> None:
    assert slice_count(_steps(10 * SLICE_STEPS)) == (10 * SLICE_STEPS, 11)
    budget = Budget("the schema", 10)
    budget.spend(10)
    with pytest.raises(Invalid, match="the schema is too complex"):
        budget.spend()


async def test_work_that_ends_in_its_first_slice_waits_for_nobody() -> None:
    slicer = Slicer(SystemClock(), waiting_max=0)

    assert await slicer.run(_steps(1)) == 1


async def test_too_much_long_work_at_once_is_refused() -> None:
    slicer = Slicer(SystemClock(), waiting_max=0)

    with pytest.raises(Unavailable, match="too many complex requests"):
        await slicer.run(_steps(2 * SLICE_STEPS))


async def test_work_that_takes_too_long_by_the_clock_is_given_up() -> None:
    clock = HandClock()

    def slow() -> Sliced[None]:
        while True:
            clock.advance(timedelta(milliseconds=300))
            yield

    with pytest.raises(Invalid, match="more than 1000 ms"):
        await Slicer(clock, work_ms_max=1000).run(slow())


async def test_others_have_a_turn_between_slices() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await Slicer(SystemClock()).run(_steps(10 * SLICE_STEPS))
        tasks.cancel_scope.cancel()

    assert turns >= 9
