"""Whoever asks waits for a look and owns none: it may leave, the look goes on; and nobody waits for ever."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskGroup

from remuda.core.errors import RemudaError, StoreUnusable, Unavailable
from remuda.scheduler.demand import SingleFlight, StillLooking
from tests.support.clocks import HostClock
from tests.support.virtual_ops import time_passes

pytestmark = pytest.mark.anyio

LOOK_S = 0.1


class Lookout:
    """Looks as a test says. `begun` and `ended` are names, in order; those that hang do so until they are let
    go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.marks: list[Collection[int]] = []
        self.trouble: Exception | None = None
        self.hangs: dict[str, anyio.Event] = {}
        self.answers: list[str | StillLooking | RemudaError | None] = []
        self.looks = SingleFlight[str, int](self._look, HostClock())

    async def _look(self, name: str, marks: Collection[int]) -> str | None:
        self.begun.append(name)
        await anyio.sleep(LOOK_S)
        if name in self.hangs:
            await self.hangs[name].wait()
        if self.trouble is not None:
            raise self.trouble
        self.ended.append(name)
        self.marks.append(frozenset(marks))
        return f"found {name}" if name != "nothing" else None

    async def ask(self, name: str = "qwen", mark: int = 0) -> None:
        try:
            self.answers.append(await self.looks.ask(name, mark))
        except RemudaError as error:
            self.answers.append(error)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TaskGroup]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.looks.run)
            yield tasks
            tasks.cancel_scope.cancel()


async def test_all_who_ask_share_one_look_and_its_answer_for_a_second() -> None:
    lookout = Lookout()
    async with lookout.running():
        async with anyio.create_task_group() as askers:
            for mark in range(5):
                askers.start_soon(lookout.ask, "qwen", mark)
        await time_passes(0.5)
        await lookout.ask()
        assert lookout.begun == ["qwen"]
        await time_passes(1)
        await lookout.ask()
    assert lookout.begun == ["qwen"] * 2
    assert lookout.answers == ["found qwen"] * 7
    assert lookout.marks[0] == set(range(5)), "the look knows who asks"


async def test_nothing_found_is_not_kept() -> None:
    lookout = Lookout()
    async with lookout.running():
        await lookout.ask("nothing")
        await lookout.ask("nothing")
    assert lookout.begun == ["nothing"] * 2


async def test_look_goes_on_when_all_who_asked_have_left() -> None:
    lookout = Lookout()
    async with lookout.running():
        async with anyio.create_task_group() as askers:
            for _ in range(200):
                askers.start_soon(lookout.ask)
            await time_passes(LOOK_S / 2)
            askers.cancel_scope.cancel()
        assert lookout.answers == []
        await time_passes(LOOK_S)
        assert (lookout.begun, lookout.ended) == (["qwen"], ["qwen"])


async def test_trouble_is_told_to_all_who_wait_and_the_next_look_may_end_well() -> None:
    lookout = Lookout()
    lookout.trouble = StoreUnusable("the database cannot be used")
    async with lookout.running():
        async with anyio.create_task_group() as askers:
            for _ in range(5):
                askers.start_soon(lookout.ask)
        assert lookout.answers == [lookout.trouble] * 5
        assert lookout.begun == ["qwen"]
        lookout.trouble = None
        await time_passes(1)
        await lookout.ask()
    assert lookout.answers[-1] == "found qwen"


async def test_defect_is_told_as_such_and_ends_nobody_elses_look() -> None:
    lookout = Lookout()
    lookout.trouble = ZeroDivisionError("a defect")
    async with lookout.running():
        await lookout.ask()
        lookout.trouble = None
        await lookout.ask("other")
    told, other = lookout.answers
    assert isinstance(told, RemudaError)
    assert (told.code, other) == ("internal", "found other")


async def test_look_that_hangs_keeps_no_other_model_waiting() -> None:
    lookout = Lookout()
    lookout.hangs["stuck"] = anyio.Event()
    async with lookout.running() as tasks:
        tasks.start_soon(lookout.ask, "stuck")
        await time_passes(0.5)
        await lookout.ask("qwen")
        assert lookout.answers == ["found qwen"]
        await time_passes(1)
        assert isinstance(lookout.answers[1], StillLooking), "who waits is told that it takes longer"
        await lookout.ask("stuck")
        assert lookout.begun == ["stuck", "qwen"], "one look at a time"
        lookout.hangs.pop("stuck").set()
        await lookout.ask("stuck")
    assert lookout.answers[-1] == "found stuck"


async def test_look_that_hangs_for_ever_is_given_up() -> None:
    lookout = Lookout()
    lookout.hangs["stuck"] = anyio.Event()
    async with lookout.running():
        with anyio.fail_after(90):
            while not lookout.answers or isinstance(lookout.answers[-1], StillLooking):
                await lookout.ask("stuck")
    told = lookout.answers[-1]
    assert isinstance(told, Unavailable)
    assert told.message == "what there is of stuck was not found out within 60 s"


async def test_only_so_many_look_at_once() -> None:
    lookout = Lookout()
    names = [f"model-{number}" for number in range(20)]
    lookout.hangs = dict.fromkeys(names, anyio.Event())
    async with lookout.running() as tasks:
        for name in names:
            tasks.start_soon(lookout.ask, name)
        await time_passes(3)
        assert len(lookout.begun) == 8
        lookout.hangs[names[0]].set()
        await time_passes(1)
    assert sorted(lookout.ended) == sorted(names)


async def test_those_who_wait_when_it_is_stopped_are_told_so() -> None:
    lookout = Lookout()
    lookout.hangs["qwen"] = anyio.Event()
    async with anyio.create_task_group() as askers, lookout.running():
        for _ in range(3):
            askers.start_soon(lookout.ask)
        await time_passes(0.5)
    await lookout.ask()
    assert [type(answer) for answer in lookout.answers] == [Unavailable] * 4
    assert {str(answer) for answer in lookout.answers} == {
        "this frontend is stopping (try again in a while, or ask another frontend)"
    }
