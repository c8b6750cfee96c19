"""What hears one subject."""

import anyio
import pytest

from remuda.bus.messages import Incoming, Subscription

pytestmark = pytest.mark.anyio


def message(number: int) -> Incoming:
    return Incoming("a", str(number).encode(), None)


@pytest.mark.parametrize("fails", [False, True])
async def test_places_of_messages_that_are_dealt_with_are_free_again(fails: bool) -> None:
    heard: list[bytes] = []
    dealt_with = anyio.Event()

    async def hear(incoming: Incoming) -> None:
        heard.append(incoming.payload)
        if fails:
            raise ValueError("a handler's failure ends nothing")

    subscription = Subscription("a", hear, "key", concurrent=True, queue_limit=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(subscription.run)
        with anyio.fail_after(10):
            for number in range(7):
                dealt_with = anyio.Event()
                subscription.offer(message(number), dealt_with.set)
                await dealt_with.wait()
        subscription.close()
    assert heard == [str(number).encode() for number in range(7)]
    assert subscription.dropped == 0


async def test_as_many_as_there_are_places_are_dealt_with_at_once_and_the_next_when_one_is_free() -> None:
    at_work: list[bytes] = []
    third, let = anyio.Event(), anyio.Event()

    async def hear(incoming: Incoming) -> None:
        at_work.append(incoming.payload)
        if len(at_work) == 3:
            third.set()
        await let.wait()

    subscription = Subscription("a", hear, "key", concurrent=True, queue_limit=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(subscription.run)
        for number in range(2):
            subscription.offer(message(number), lambda: None)
        await anyio.wait_all_tasks_blocked()
        subscription.offer(message(2), lambda: None)
        await anyio.wait_all_tasks_blocked()
        assert at_work == [b"0", b"1"]
        let.set()
        with anyio.fail_after(10):
            await third.wait()
        subscription.close()
