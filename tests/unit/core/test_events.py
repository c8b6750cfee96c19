"""A value that others wait on."""

import anyio
import pytest

from remuda.core.events import AutoResetEvent, Notifier, ObservableValue

pytestmark = pytest.mark.anyio


async def test_a_waiter_returns_when_the_value_is_as_wanted() -> None:
    watched = ObservableValue(0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_count_to, watched, 3)
        with anyio.fail_after(5):
            assert await watched.until(lambda value: value == 3) == 3


async def test_a_slow_reader_sees_the_newest_value_not_each_one() -> None:
    watched = ObservableValue(0)
    changes = watched.changes()
    seen = [await anext(changes)]
    watched.set(1)
    watched.set(2)
    seen.append(await anext(changes))
    await changes.aclose()
    assert seen == [0, 2]


async def test_the_same_value_is_no_news() -> None:
    watched = ObservableValue("a")
    assert not watched.set("a")
    assert watched.set("b")


async def _count_to(watched: ObservableValue[int], last: int) -> None:
    for value in range(1, last + 1):
        watched.set(value)
        await anyio.lowlevel.checkpoint()


async def test_a_change_between_taking_the_event_and_waiting_for_it_is_not_missed() -> None:
    changes = Notifier()
    taken = changes.changed
    changes.notify()
    assert taken.is_set()
    assert not changes.changed.is_set()  # The next one has not come yet.
    assert changes.changed is changes.changed


async def test_calls_before_the_loop_comes_round_are_one() -> None:
    wanted = AutoResetEvent()
    wanted.set()
    wanted.set()
    await wanted.wait()
    with anyio.move_on_after(0) as again:
        await wanted.wait()
    assert again.cancelled_caught


async def test_what_is_about_to_be_done_need_not_be_called_for_again() -> None:
    wanted = AutoResetEvent()
    wanted.set()
    wanted.clear()
    with anyio.move_on_after(0) as again:
        await wanted.wait()
    assert again.cancelled_caught
