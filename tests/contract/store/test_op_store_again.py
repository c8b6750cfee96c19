"""OpStore: the same wish once more. It joins what is under way, under its own key, and is tried at once."""

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.core import limits
from remuda.core.errors import Conflict
from remuda.core.ids import NodeId
from remuda.ops.model import Kind, Operation, OpId, RollOut, State, Step
from remuda.ops.ports import Filter, OpStore
from remuda.store import ops_intents
from remuda.store.database import Database
from remuda.store.ops_intents import Wished
from remuda.store.schema import joined_keys
from tests.contract.store.builders import row_count
from tests.support.op_builders import (
    ONE,
    OPEN_FOR,
    TROUBLE,
    an_operation,
    begin,
    begun,
    end,
    ended,
    its_steps,
    submitted,
    the_steps,
)

pytestmark = pytest.mark.anyio

OP = OpId("op-1")


async def in_backoff(store: OpStore) -> Step:
    """The one step of an operation waits for an attempt that comes much later."""
    [step] = await begin(store)
    later = (await store.live()).now + timedelta(hours=1)
    waits = replace(step, state=State.PENDING, failures=3, problem=TROUBLE, wait_until=later, boot=None)
    [written] = await store.commit([waits], ONE, OPEN_FOR)
    return written


# The time at which something was asked for.


async def test_later_operation_is_asked_later_though_the_clock_was_set_back(
    database: Database, op_store: OpStore
) -> None:
    """Who goes first on a node goes by it."""
    first = (await op_store.submit(an_operation(), its_steps(an_operation(), "node-1"))).operation
    second, third = an_operation("op-2", backend="b"), an_operation("op-3", backend="c")
    wished = [Wished(one, tuple(its_steps(one, "node-1"))) for one in (second, third)]
    hour_ago = first.asked_at - timedelta(hours=1)
    await database.transact(lambda c, _: ops_intents.submit(c, hour_ago, wished))
    asked = [(await op_store.view(OpId(op))).operation.asked_at for op in ("op-1", "op-2", "op-3")]
    assert asked == sorted(set(asked))
    assert [one.id for one in (await op_store.live()).operations] == ["op-1", "op-2", "op-3"]


# Keys.


async def test_key_of_a_joined_wish_is_remembered_when_the_operation_is_over(op_store: OpStore) -> None:
    await submitted(op_store)
    await submitted(op_store, an_operation("op-2", key="click"))
    await end(op_store)
    got = await op_store.submit(
        an_operation("op-3", key="click"), its_steps(an_operation("op-3"), "node-1", "node-2")
    )
    assert (got.joined, got.operation.id) == (True, OP)
    assert [view.operation.id for view in await op_store.views(Filter())] == [OP]


async def test_every_joined_wish_has_its_own_key(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(key="first"))
    for number in range(2, 5):
        await submitted(op_store, an_operation(f"op-{number}", key=f"key-{number}"))
    await end(op_store)
    for key in ("first", "key-2", "key-3", "key-4"):
        assert await submitted(op_store, an_operation("op-9", key=key)) == OP


async def test_key_of_a_joined_wish_is_not_used_for_something_else(op_store: OpStore) -> None:
    await submitted(op_store)
    await submitted(op_store, an_operation("op-2", key="click", selection="zone=attic"))
    assert await submitted(op_store, an_operation("op-3", key="click", selection="zone=attic")) == OP
    for other in (
        an_operation("op-4", key="click", selection="all"),
        an_operation("op-4", Kind.REMOVE, key="click", selection="zone=attic"),
        replace(an_operation("op-4", key="click", selection="zone=attic"), roll_out=RollOut(1)),
    ):
        with pytest.raises(Conflict, match=r"'click'.*op-1"):
            await submitted(op_store, other)


async def test_keys_of_joined_wishes_are_bounded(
    database: Database, op_store: OpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOINED_KEYS_KEPT_MAX", 20)
    await submitted(op_store)
    await _join_at_once(op_store, range(12))
    await _join_at_once(op_store, range(12, 30))
    assert await row_count(database, joined_keys) == 20


async def _join_at_once(store: OpStore, numbers: range) -> None:
    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(submitted, store, an_operation(f"again-{number}", key=f"key-{number}"))


async def test_keys_go_with_their_operation(
    database: Database, op_store: OpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_KEPT_MAX", 0)
    await submitted(op_store)
    await submitted(op_store, an_operation("op-2", key="click"))
    await end(op_store)
    assert await row_count(database, joined_keys) == 0


# Another try.


async def test_same_wish_tries_a_step_in_backoff_now(op_store: OpStore) -> None:
    await submitted(op_store)
    await in_backoff(op_store)
    change = (await op_store.view(OP)).change
    got = await op_store.submit(an_operation("op-2"), its_steps(an_operation("op-2"), "node-1"))
    [step] = got.view.steps
    assert (step.state, step.failures, step.wait_until, step.attempt) == (State.PENDING, 0, None, 1)
    assert step.reason == "asked for again by ada"
    assert got.view.change > change, "whoever watches sees it"
    assert list(await the_steps(op_store)) == [step]


async def test_wish_sent_again_under_its_key_changes_nothing(op_store: OpStore) -> None:
    """It is the same request, whose answer was lost."""
    await submitted(op_store, an_operation(key="click"))
    waits = await in_backoff(op_store)
    await submitted(op_store, an_operation("op-2", key="click"))
    assert list(await the_steps(op_store)) == [waits]


async def test_same_wish_begins_afresh_where_it_has_failed_while_others_are_at_it(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    bad, busy = await begin(op_store)
    await op_store.commit([replace(bad, state=State.FAILED, failures=10, problem=TROUBLE)], ONE, OPEN_FOR)
    await submitted(op_store, an_operation("op-2"), ["node-1", "node-2"])
    failed, at_work = await the_steps(op_store)
    assert (failed.state, failed.failures, failed.attempt) == (State.PENDING, 0, 1)
    assert at_work == busy


async def test_same_wish_wins_over_the_opposite_that_came_in_between(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    await submitted(op_store, an_operation("op-2", Kind.REMOVE), ["node-1"])
    await submitted(op_store, an_operation("op-3"), ["node-1", "node-2"])
    assert [step.replaced_by for step in await the_steps(op_store)] == [None, None]
    [removal] = await the_steps(op_store, "op-2")
    assert removal.replaced_by == OP


async def test_retry_tries_a_step_in_backoff_now(op_store: OpStore) -> None:
    await submitted(op_store)
    await in_backoff(op_store)
    await op_store.retry(OP, [NodeId("node-1")], "bob")
    [step] = await the_steps(op_store)
    assert (step.failures, step.wait_until, step.reason) == (0, None, "asked for again by bob")


async def test_load_that_is_joined_is_left_as_it_is(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(kind=Kind.LOAD))
    waits = await in_backoff(op_store)
    assert await submitted(op_store, an_operation("op-2", Kind.LOAD)) == OP
    assert list(await the_steps(op_store)) == [waits]


async def test_wider_wish_tries_a_narrower_one_in_backoff_now(op_store: OpStore) -> None:
    """On the node that both want, the narrower one goes first: the wider one would wait out its backoff."""
    narrow = an_operation()
    await op_store.submit(narrow, its_steps(narrow, "node-1"))
    await in_backoff(op_store)
    wide = an_operation("op-2")
    got = await op_store.submit(wide, its_steps(wide, "node-1", "node-2"))
    assert not got.joined
    [woken] = (await op_store.view(OP)).steps
    assert (woken.state, woken.failures, woken.wait_until) == (State.PENDING, 0, None)
    assert woken.reason == "asked for again by ada"


async def test_wish_for_other_nodes_wakes_nobody(op_store: OpStore) -> None:
    narrow = an_operation()
    await op_store.submit(narrow, its_steps(narrow, "node-1"))
    waits = await in_backoff(op_store)
    elsewhere = an_operation("op-2")
    await op_store.submit(elsewhere, its_steps(elsewhere, "node-2"))
    assert list((await op_store.view(OP)).steps) == [waits]


async def test_same_wish_looks_again_at_nodes_that_are_done(op_store: OpStore) -> None:
    """What was done may have been undone since, by another operation or by hand."""
    await done_on_one_node(op_store)
    removal = an_operation("op-2", Kind.REMOVE)
    await op_store.submit(removal, its_steps(removal, "node-1"))
    [gone] = await begin(op_store, "op-2")
    await op_store.commit([ended(gone, State.SUCCEEDED)], ONE, OPEN_FOR)
    assert await submitted(op_store, an_operation("op-3"), ["node-1", "node-2"]) == OP
    again, waits = await the_steps(op_store)
    assert (again.state, again.attempt, again.failures) == (State.PENDING, 1, 0)
    assert again.reason == "asked for again by ada"
    assert (waits.state, waits.attempt) == (State.PENDING, 0)


# A reference that has moved.


def pinned_anew(operation: Operation, digest: str = "sha256:" + "b" * 64) -> list[Step]:
    return [
        replace(step, goal=replace(step.goal, digest=digest))
        for step in its_steps(operation, "node-1", "node-2")
    ]


async def done_on_one_node(store: OpStore) -> Step:
    """The other one is away, which keeps the operation open."""
    await submitted(store, an_operation(key="first"), ["node-1", "node-2"])
    done, waits = await the_steps(store)
    [running] = await store.commit([begun(done)], ONE, OPEN_FOR)
    await store.commit([ended(running, State.SUCCEEDED)], ONE, OPEN_FOR)
    return waits


async def test_wish_for_other_bytes_is_carried_out_everywhere_and_replaces_what_waits(
    op_store: OpStore,
) -> None:
    await done_on_one_node(op_store)
    moved = an_operation("op-2", key="second")
    got = await op_store.submit(moved, pinned_anew(moved))
    assert (got.joined, got.operation.id) == (False, "op-2")
    assert [(step.state, step.goal) for step in await the_steps(op_store, "op-2")] == [
        (State.PENDING, step.goal) for step in pinned_anew(moved)
    ]
    done, waits = await the_steps(op_store)
    assert (done.state, done.replaced_by) == (State.SUCCEEDED, None)
    assert (waits.state, waits.replaced_by) == (State.PENDING, "op-2")


async def test_wish_whose_bytes_nobody_knows_joins_the_newest(op_store: OpStore) -> None:
    await done_on_one_node(op_store)
    unpinned = an_operation("op-2")
    assert (await op_store.submit(unpinned, pinned_anew(unpinned, ""))).operation.id == OP
    moved = an_operation("op-3")
    await op_store.submit(moved, pinned_anew(moved))
    for digest in ("", "sha256:" + "b" * 64):
        again = an_operation("op-4")
        got = await op_store.submit(again, pinned_anew(again, digest))
        assert (got.joined, got.operation.id) == (True, "op-3")
    done, waits = await the_steps(op_store)
    assert (done.state, done.replaced_by) == (State.PENDING, "op-3"), "it was to be looked at again"
    assert waits.replaced_by == "op-3"


async def test_keys_keep_their_meaning_when_a_reference_has_moved(op_store: OpStore) -> None:
    """Sent again under its key, a wish is the one that it was, whatever the reference stands for now."""
    waits = await done_on_one_node(op_store)
    again = an_operation("op-2", key="first")
    got = await op_store.submit(again, pinned_anew(again))
    assert (got.joined, got.operation.id) == (True, OP)
    assert (await the_steps(op_store))[1] == waits


async def test_step_in_backoff_with_other_bytes_is_replaced_and_not_tried_again(op_store: OpStore) -> None:
    await submitted(op_store)
    waits = await in_backoff(op_store)
    moved = an_operation("op-2")
    await op_store.submit(moved, pinned_anew(moved)[:1])
    assert list(await the_steps(op_store)) == [
        replace(waits, replaced_by=OpId("op-2"), version=waits.version + 1)
    ]


async def test_wishes_for_other_bytes_that_come_at_once_meet_each_other(
    database: Database, op_store: OpStore
) -> None:
    one, two, three = (an_operation(f"op-{number}") for number in (1, 2, 3))
    wished = [
        Wished(one, tuple(its_steps(one, "node-1", "node-2"))),
        Wished(two, tuple(pinned_anew(two))),
        Wished(three, tuple(its_steps(three, "node-1", "node-2"))),
    ]
    await database.transact(lambda c, now: ops_intents.submit(c, now, wished))
    by = [[step.replaced_by for step in await the_steps(op_store, op.id)] for op in (one, two, three)]
    assert by == [["op-2", "op-2"], ["op-3", "op-3"], [None, None]]
