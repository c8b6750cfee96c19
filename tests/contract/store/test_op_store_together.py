"""OpStore with several frontends, and several tasks of one, on the same database at once."""

from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

from remuda.core import limits
from remuda.core.ids import NodeId
from remuda.fleet.ports import FleetStore, Note
from remuda.ops.model import Kind, OpId, Outcome, State, Step, Wish
from remuda.ops.ports import Filter, OpStore, Progress, Submitted, View
from remuda.ops.reasons import StepCause, because
from remuda.store.database import Database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops import SqlOpStore
from remuda.store.schema import attempts, operations
from tests.contract.store.builders import registered, row_count
from tests.support.op_builders import (
    ONE,
    OPEN_FOR,
    TWO,
    an_operation,
    begin,
    begun,
    ended,
    its_steps,
    submitted,
    the_steps,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Stores = tuple[OpStore, OpStore]


@pytest.fixture
def stores(database: Database, other_frontend: Database) -> Stores:
    return SqlOpStore(database), SqlOpStore(other_frontend)


async def test_of_two_frontends_that_begin_the_same_steps_one_wins_each(
    database: Database, stores: Stores
) -> None:
    await submitted(stores[0], an_operation(), [f"node-{number:02}" for number in range(40)])
    waiting = await the_steps(stores[0])
    won: list[Step] = []

    async def begin_all(store: OpStore, order: Sequence[Step]) -> None:
        for step in order:
            won.extend(await store.commit([begun(step)], ONE if store is stores[0] else TWO, OPEN_FOR))

    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(begin_all, store, waiting)
            tasks.start_soon(begin_all, store, waiting[::-1])
    assert sorted(step.node for step in won) == [step.node for step in waiting]
    assert await row_count(database, attempts) == len(waiting)


async def test_same_wish_submitted_at_once_is_one_operation(database: Database, stores: Stores) -> None:
    got: list[Submitted] = []

    async def submit(number: int) -> None:
        operation = an_operation(f"op-{number}")
        got.append(await stores[number % 2].submit(operation, its_steps(operation, "node-1", "node-2")))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(submit, number)
    assert len({one.operation.id for one in got}) == 1
    assert sorted(one.joined for one in got) == [False] + 19 * [True]
    assert await row_count(database, operations) == 1


async def test_same_idempotency_key_at_once_is_one_operation(database: Database, stores: Stores) -> None:
    got: list[Submitted] = []

    async def submit(number: int) -> None:
        operation = an_operation(f"op-{number}", key="click", selection="all")
        got.append(await stores[number % 2].submit(operation, its_steps(operation, f"node-{number}")))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(submit, number)
    assert len({one.operation.id for one in got}) == 1
    assert await row_count(database, operations) == 1


async def test_of_opposite_wishes_at_once_exactly_the_last_stands(stores: Stores) -> None:
    async def submit(number: int) -> None:
        kind = Kind.INSTALL if number % 2 else Kind.REMOVE
        operation = an_operation(f"op-{number:02}", kind)
        # Each differs a little, so that none is joined.
        operation = replace(operation, source=replace(operation.source, alias=str(number)))
        await stores[number // 2 % 2].submit(operation, its_steps(operation, "node-1"))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(submit, number)
    live = await stores[0].live()
    order = [operation.id for operation in live.operations]
    kinds = {operation.id: operation.kind for operation in live.operations}
    by_op = {step.op: step for step in live.steps}
    for place, op in enumerate(order):
        opposites = [later for later in order[place + 1 :] if kinds[later] is not kinds[op]]
        assert by_op[op].replaced_by == (opposites[-1] if opposites else None)


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.long)])
async def test_many_wishes_at_once_are_all_taken(database: Database, op_store: OpStore, count: int) -> None:
    async def submit(number: int) -> None:
        await submitted(
            op_store, an_operation(f"op-{number}", backend=f"b-{number}"), [f"node-{number % 50}"]
        )

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(submit, number)
    assert await row_count(database, operations) == count
    assert len((await op_store.live()).steps) == count


async def test_what_is_under_way_moves_on_while_many_wishes_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_PER_WRITE_MAX", 20)  # Ten operations with a step each.
    op_store = SqlOpStore(database)
    await submitted(op_store, an_operation("first", backend="whisper"))
    taken: list[int] = []

    async def submit(number: int) -> None:
        await submitted(op_store, an_operation(f"op-{number}", backend=f"b-{number}"))
        taken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(300):
            tasks.start_soon(submit, number)
        await wait_until(lambda: taken)  # All were in the queue before the first was served.
        before = len(taken)
        await begin(op_store, "first")
        assert len(taken) - before < 100


async def test_nodes_removed_while_their_steps_move_leave_nothing_undone(
    database: Database, other_frontend: Database, stores: Stores
) -> None:
    fleet: FleetStore = SqlFleetStore(database)
    ids: list[NodeId] = [(await registered(fleet, f"node-{number:02}")).id for number in range(20)]
    await submitted(stores[0], an_operation(), ids)
    await submitted(stores[0], an_operation("op-2", backend="whisper"), ids)

    async def remove() -> None:
        for node in ids:
            await SqlFleetStore(other_frontend).remove(node, Note("removed"))

    async def move(op: str) -> None:
        for step in await the_steps(stores[0], op):
            (running,) = await stores[0].commit([begun(step)], ONE, OPEN_FOR)
            await stores[1].commit([ended(running, State.SUCCEEDED)], ONE, OPEN_FOR)

    async def ask() -> None:
        for number, node in enumerate(ids):
            await submitted(stores[1], an_operation(f"new-{number}", backend="piper"), [node])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remove)
        tasks.start_soon(move, "op-1")
        tasks.start_soon(move, "op-2")
        tasks.start_soon(ask)
    live = await stores[0].live()
    assert len(live.steps) == len(ids)
    assert (await fleet.fleet()).nodes == []


class Reader:
    """Follows the changes as a stream does, page by page, and keeps the latest view of each operation."""

    def __init__(self, store: OpStore, page: int) -> None:
        self._store, self._page = store, page
        self._after = 0
        self.seen: dict[OpId, View] = {}

    async def catch_up(self) -> None:
        full = True
        while full:
            views, newest = await self._store.changed_since(self._after, self._page)
            numbers = [view.change for view in views]
            assert numbers == sorted(set(numbers))
            assert all(self._after < number <= newest for number in numbers)
            self.seen |= {view.operation.id: view for view in views}
            full = len(views) == self._page
            self._after = numbers[-1] if full else newest


async def write(store: OpStore, name: str, count: int) -> None:
    """Two thirds of the operations change only once: they are seen then or never."""
    for number in range(count):
        await submitted(store, an_operation(f"{name}-{number}", backend=f"{name}-{number}"), ["a", "b"])
        op = OpId(f"{name}-{number * 7 % (number + 1) // 3 * 3}")
        first, second = await the_steps(store, op)
        await store.commit([begun(first)], ONE, OPEN_FOR)
        await store.note_progress({(op, first.node): Progress(first.attempt + 1, number / count)})
        await store.answer(op, first.node, Outcome(first.attempt + 1))
        await store.commit([replace(second, why=because(StepCause.NOTE, str(number)))], ONE, OPEN_FOR)
        await store.wish(op, list(Wish)[number % 3])


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.long)])
async def test_readers_of_changes_miss_nothing_while_others_write(stores: Stores, count: int) -> None:
    readers = [Reader(stores[number % 2], page) for number, page in enumerate((1, 7, 1000))]
    done = anyio.Event()

    async def write_all() -> None:
        async with anyio.create_task_group() as writers:
            for number in range(4):
                writers.start_soon(write, stores[number % 2], f"writer-{number}", count)
        done.set()

    async def follow(reader: Reader) -> None:
        while not done.is_set():
            await reader.catch_up()
        await reader.catch_up()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all)
        for reader in readers:
            tasks.start_soon(follow, reader)
    truth = {view.operation.id: view for view in await stores[0].views(Filter(limit=1000))}
    assert len(truth) == 4 * count
    for reader in readers:
        assert reader.seen == truth
