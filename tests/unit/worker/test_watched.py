"""A value that others wait on."""

import anyio
import pytest

from remuda.worker.watched import Watched

pytestmark = pytest.mark.anyio


async def test_a_waiter_returns_when_the_value_is_as_wanted() -> None:
    watched = Watched(0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_count_to, watched, 3)
        with anyio.fail_after(5):
            assert await watched.until(lambda value: value == 3) == 3


async def test_a_slow_reader_sees_the_newest_value_not_each_one() -> None:
    watched = Watched(0)
    changes = watched.changes()
    seen = [await anext(changes)]
    watched.set(1)
    watched.set(2)
    seen.append(await anext(changes))
    await changes.aclose()
    assert seen == [0, 2]


async def test_the_same_value_is_no_news() -> None:
    watched = Watched("a")
    assert not watched.set("a")
    assert watched.set("b")


async def _count_to(watched: Watched[int], last: int) -> None:
    for value in range(1, last + 1):
        watched.set(value)
        await anyio.lowlevel.checkpoint()
