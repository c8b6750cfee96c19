"""Batcher: who is served with whom, and what one caller's trouble means for the others."""

from collections.abc import Sequence

import anyio
import pytest

from remuda.core.batching import Batcher, BatchLimits
from remuda.core.errors import Conflict, Invalid, RemudaError, StoreUnusable, Unavailable

pytestmark = pytest.mark.anyio


class Counter:
    """Doubles numbers, once it is let. What it is told to refuse or to fail at, it does."""

    def __init__(self, waiting_max: int = 100, weight_max: int = 100) -> None:
        self.groups: list[list[int]] = []
        self.open = anyio.Event()
        self.begun = anyio.Event()
        self.refuses = 0
        self.raises: dict[int, RemudaError] = {}
        lock = anyio.Lock(fast_acquire=True)
        self.crowd = Batcher(
            self._serve, lambda: lock, BatchLimits(waiting_max, weight_max), lambda number: number
        )
        self.answers: dict[int, int | RemudaError] = {}

    async def _serve(self, numbers: Sequence[int]) -> Sequence[int | RemudaError]:
        self.groups.append(list(numbers))
        self.begun.set()
        await self.open.wait()
        for number in numbers:
            if number in self.raises:
                raise self.raises[number]
        return [Conflict("not this") if number == self.refuses else 2 * number for number in numbers]

    async def ask(self, number: int) -> None:
        try:
            self.answers[number] = await self.crowd.ask(number)
        except RemudaError as error:
            self.answers[number] = error

    async def all_at_once(self, *numbers: int) -> None:
        """The first is being served while the others come."""
        async with anyio.create_task_group() as callers:
            for number in numbers:
                callers.start_soon(self.ask, number)
                await anyio.wait_all_tasks_blocked()
            self.open.set()


async def test_who_comes_meanwhile_is_served_together_in_order() -> None:
    counter = Counter()
    await counter.all_at_once(1, 7, 3, 5)
    assert counter.groups == [[1], [7, 3, 5]]
    assert counter.answers == {1: 2, 7: 14, 3: 6, 5: 10}


async def test_a_group_has_a_bound_and_one_who_exceeds_it_is_served_alone() -> None:
    counter = Counter(weight_max=10)
    await counter.all_at_once(1, 4, 5, 2, 99, 3)
    assert counter.groups == [[1], [4, 5], [2], [99], [3]]
    assert counter.answers == {number: 2 * number for number in (1, 4, 5, 2, 99, 3)}


async def test_who_comes_when_too_many_wait_is_told_to_come_again() -> None:
    counter = Counter(waiting_max=3)
    await counter.all_at_once(1, 2, 3, 4)
    refused = counter.answers.pop(4)
    assert isinstance(refused, Unavailable)
    assert counter.answers == {1: 2, 2: 4, 3: 6}
    await counter.ask(4)
    assert counter.answers[4] == 8


async def test_one_that_is_refused_spoils_nobody_elses_answer() -> None:
    counter = Counter()
    counter.refuses = 3
    await counter.all_at_once(1, 2, 3, 4)
    assert isinstance(counter.answers.pop(3), Conflict)
    assert counter.answers == {1: 2, 2: 4, 4: 8}


async def test_a_group_that_cannot_be_served_because_of_one_is_served_apart() -> None:
    counter = Counter()
    counter.raises[3] = Invalid("a text in it cannot be stored")
    await counter.all_at_once(1, 2, 3, 4)
    assert counter.answers.pop(3) is counter.raises[3]
    assert counter.answers == {1: 2, 2: 4, 4: 8}
    assert counter.groups == [[1], [2, 3, 4], [2], [3], [4]]


async def test_trouble_with_the_whole_is_told_to_the_whole_group_once() -> None:
    counter = Counter()
    counter.raises[3] = StoreUnusable("it is away")
    await counter.all_at_once(1, 2, 3, 4)
    assert counter.answers == {1: 2, 2: counter.raises[3], 3: counter.raises[3], 4: counter.raises[3]}
    assert counter.groups == [[1], [2, 3, 4]]


async def test_who_leaves_while_serving_leaves_the_others_to_the_next() -> None:
    counter = Counter()
    async with anyio.create_task_group() as callers:
        callers.start_soon(counter.ask, 1)
        await counter.begun.wait()
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(counter.ask, 2)
            callers.start_soon(counter.ask, 3)
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        counter.open.set()
    assert counter.answers == {1: 2, 3: 6}


async def test_the_one_who_serves_may_leave() -> None:
    counter = Counter()
    async with anyio.create_task_group() as callers:
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(counter.ask, 1)
            await counter.begun.wait()
            callers.start_soon(counter.ask, 2)
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        counter.open.set()
    assert counter.groups == [[1], [2]]
    assert counter.answers == {2: 4}
