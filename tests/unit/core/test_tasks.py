import anyio
import pytest

from remuda.core.tasks import TaskOwner

pytestmark = pytest.mark.anyio


async def test_tasks_are_ended_with_their_owner() -> None:
    owner, ended = TaskOwner(), anyio.Event()

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(owner.run)
        owner.start(work, "long")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert ended.is_set()
    assert not owner.is_open


async def test_no_task_begins_without_its_owner() -> None:
    owner, began = TaskOwner(), False

    async def work() -> None:
        nonlocal began
        began = True

    with pytest.raises(AssertionError):
        owner.start(work)
    async with owner.open():
        owner.start(work)
    assert began
