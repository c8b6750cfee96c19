"""OpStore: how operations come, are looked at and go."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event

from remuda.core import limits
from remuda.core.errors import Conflict, NotFound
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.ports import FleetStore, Note
from remuda.ops.external_sources import external
from remuda.ops.model import OF_BACKENDS, Kind, Operation, OpId, ReplicaTarget, RollOut, Source, State, Wish
from remuda.ops.ports import Filter, OpStore
from remuda.ops.reasons import StepCause, because
from remuda.store.database import Database
from remuda.store.schema import attempts, operations, steps
from tests.contract.store.builders import registered, row_count
from tests.support.op_builders import (
    LONG_AGO,
    ONE,
    OPEN_FOR,
    TROUBLE,
    an_operation,
    begin,
    end,
    its_steps,
    submitted,
    the_steps,
)

pytestmark = pytest.mark.anyio

OP = OpId("op-1")
EVERY = Filter()


async def listed(store: OpStore, which: Filter = EVERY) -> list[str]:
    return [view.operation.id for view in await store.views(which)]


# Submitting.


async def test_new_operation_is_read_back_as_asked_but_at_the_time_of_the_store(op_store: OpStore) -> None:
    wanted = replace(
        an_operation(key="k", selection="all"),
        roll_out=RollOut(3, canary=True, proves=True),
        expires=LONG_AGO + timedelta(days=365 * 50, microseconds=7),
    )
    mine = [
        replace(step, source=Source("llama-cpp", uri=f"oci://{step.node}"), proves=True, rolls_back=True)
        for step in its_steps(wanted, "node-1", "node-2")
    ]
    got = await op_store.submit(wanted, mine)
    view = await op_store.view(OP)
    assert not got.joined
    later = got.operation.asked_at - wanted.asked_at  # Spans are kept, the caller's clock is not.
    assert wanted.expires is not None
    expires = wanted.expires + later
    asked = replace(wanted, asked_at=got.operation.asked_at, expires=expires)
    assert got.operation == view.operation == asked
    assert abs((await op_store.live()).now - got.operation.asked_at) < timedelta(minutes=1)
    assert list(view.steps) == [replace(step, expires=expires) for step in mine]


async def test_same_wish_under_way_is_joined(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    again = an_operation("op-2")
    got = await op_store.submit(again, its_steps(again, "node-2", "node-1"))
    assert (got.joined, got.operation.id) == (True, OP)
    assert await listed(op_store) == [OP]


async def test_other_nodes_or_another_roll_out_make_an_operation_of_their_own(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    await submitted(op_store, an_operation("op-2"), ["node-1"])
    await submitted(op_store, replace(an_operation("op-3"), roll_out=RollOut(1)), ["node-1", "node-2"])
    assert await listed(op_store) == ["op-3", "op-2", "op-1"]


async def test_wish_that_is_over_is_not_joined(op_store: OpStore) -> None:
    await submitted(op_store)
    await end(op_store)
    assert await submitted(op_store, an_operation("op-2")) == "op-2"


async def test_operation_sent_again_is_joined_even_when_it_is_over(op_store: OpStore) -> None:
    await submitted(op_store)
    await end(op_store)
    got = await op_store.submit(an_operation(), its_steps(an_operation(), "node-1"))
    assert got.joined
    assert got.operation.finished_at is not None


async def test_idempotency_key_brings_back_the_operation_it_was_used_for(op_store: OpStore) -> None:
    first = an_operation(key="click", selection="all")
    await submitted(op_store, first, ["node-1"])
    await end(op_store)
    newer_galleries = replace(first.source, galleries="[]")
    again = replace(an_operation("op-2", key="click", selection="all"), source=newer_galleries)
    got = await op_store.submit(again, its_steps(again, "node-1", "node-2"))
    assert (got.joined, got.operation.id) == (True, OP)


@pytest.mark.parametrize("uri", ["registry.example/me/mine:v1", "oci://registry.example/me/mine:v1"])
async def test_idempotency_key_brings_back_an_install_that_an_earlier_release_stored(
    op_store: OpStore, uri: str
) -> None:
    """It stored a reference as it was given, without the name of its backend."""
    first = replace(an_operation(key="click"), source=Source("", uri=uri, name="mine"))
    await submitted(op_store, first)
    now = external(first.source, local_sources=False).source
    got = await op_store.submit(replace(an_operation("op-2", key="click"), source=now), [])
    assert (got.joined, got.operation.id) == (True, OP)
    other = replace(an_operation("op-2", key="click"), source=replace(now, backend="other", name="other"))
    with pytest.raises(Conflict, match="'click'"):
        await submitted(op_store, other)


@pytest.mark.parametrize(
    "other",
    [
        an_operation("op-2", key="click", backend="whisper"),
        an_operation("op-2", Kind.REMOVE, key="click"),
        an_operation("op-2", key="click", selection="zone=attic"),
    ],
)
async def test_idempotency_key_used_for_something_else_is_a_conflict(
    op_store: OpStore, other: Operation
) -> None:
    await submitted(op_store, an_operation(key="click"))
    with pytest.raises(Conflict, match=r"'click'.*op-1"):
        await submitted(op_store, other)
    assert await listed(op_store) == [OP]


async def test_opposite_wish_marks_the_steps_it_replaces(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2", "node-3"])
    running = await begin(op_store)
    await submitted(op_store, an_operation("op-2", Kind.REMOVE), ["node-2", "node-3"])
    marked = {step.node: step.replaced_by for step in await the_steps(op_store)}
    assert marked == {"node-1": None, "node-2": "op-2", "node-3": "op-2"}
    written = await op_store.commit(running, ONE, OPEN_FOR)
    assert [step.node for step in written] == ["node-1"], "who has not seen the mark cannot wipe it out"


async def test_steps_of_other_backends_and_other_nodes_are_not_replaced(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(backend="whisper"), ["node-1"])
    await submitted(op_store, an_operation("op-2"), ["node-2"])
    await submitted(op_store, an_operation("op-3", Kind.REMOVE), ["node-1"])
    kept = [*await the_steps(op_store), *await the_steps(op_store, "op-2")]
    assert {step.replaced_by for step in kept} == {None}


async def test_operation_whose_steps_are_all_skipped_is_over_at_once(op_store: OpStore) -> None:
    operation = an_operation()
    skipped = [replace(step, state=State.SKIPPED) for step in its_steps(operation, "node-1")]
    got = await op_store.submit(operation, skipped)
    assert got.operation.finished_at is not None
    assert (await op_store.live()).operations == ()


async def test_later_operation_is_asked_later_whatever_the_clock_says(op_store: OpStore) -> None:
    first = (await op_store.submit(an_operation(), its_steps(an_operation(), "node-1"))).operation
    others = [an_operation(f"op-{number}", backend=f"b-{number}") for number in range(2, 20)]
    asked = [first.asked_at]
    for other in others:
        asked.append((await op_store.submit(other, its_steps(other, "node-1"))).operation.asked_at)
    assert asked == sorted(set(asked))


# Nodes.


async def test_deleted_node_leaves_its_steps_with_their_names(
    database: Database, fleet_store: FleetStore, op_store: OpStore
) -> None:
    node = await registered(fleet_store)
    await submitted(op_store, an_operation(), [node.id, "node-2"])
    before = await the_steps(op_store)
    await fleet_store.remove(node.id, Note("removed"))
    assert await the_steps(op_store) == before
    assert await listed(op_store, Filter(node=node.id)) == [OP]
    references = await database.read(lambda c, now: [row.node_id for row in c.execute(steps.select())])
    assert references == [None, None]


async def test_step_refers_to_its_node_while_that_exists(
    database: Database, fleet_store: FleetStore, op_store: OpStore
) -> None:
    node = await registered(fleet_store)
    await submitted(op_store, an_operation(), [node.id])
    references = await database.read(lambda c, now: [row.node_id for row in c.execute(steps.select())])
    assert references == [node.id]


# Wishes, retries, dismissals.


async def test_wish_is_set_and_counts_as_a_change(op_store: OpStore) -> None:
    await submitted(op_store)
    before = (await op_store.view(OP)).change
    paused = await op_store.wish(OP, Wish.PAUSE)
    assert paused.wish is Wish.PAUSE
    view = await op_store.view(OP)
    assert view.operation == paused
    assert view.change > before


async def test_wish_that_is_held_already_changes_nothing(op_store: OpStore) -> None:
    await submitted(op_store)
    before = await op_store.view(OP)
    await op_store.wish(OP, Wish.RUN)
    assert await op_store.view(OP) == before


async def test_wish_for_what_is_over_is_a_conflict(op_store: OpStore) -> None:
    await submitted(op_store)
    await end(op_store)
    with pytest.raises(Conflict, match="op-1 is over"):
        await op_store.wish(OP, Wish.CANCEL)


@pytest.mark.parametrize(
    ("kind", "state", "told"),
    [
        (Kind.INSTALL, State.FAILED, "retry it, or ask for a new one"),
        (Kind.INSTALL, State.SUCCEEDED, "ask for a new one"),
        (Kind.LOAD, State.FAILED, "ask for a new one"),
    ],
)
async def test_retry_is_advised_only_where_there_is_something_to_retry(
    op_store: OpStore, kind: Kind, state: State, told: str
) -> None:
    await submitted(op_store, an_operation(kind=kind))
    await end(op_store, state=state)
    with pytest.raises(Conflict) as refused:
        await op_store.wish(OP, Wish.CANCEL)
    assert refused.value.hint == told


async def test_load_is_cancelled_and_not_paused(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(kind=Kind.LOAD))
    with pytest.raises(Conflict, match="cannot be paused"):
        await op_store.wish(OP, Wish.PAUSE)
    assert (await op_store.wish(OP, Wish.CANCEL)).wish is Wish.CANCEL


async def test_unknown_operations_are_not_found(op_store: OpStore) -> None:
    nobody = OpId("op.*.>")
    with pytest.raises(NotFound, match=r"op\.\*\.>"):
        await op_store.wish(nobody, Wish.CANCEL)
    with pytest.raises(NotFound):
        await op_store.retry(nobody, None, "ada")
    with pytest.raises(NotFound):
        await op_store.view(nobody)
    assert await op_store.dismiss([nobody]) == 0
    assert await listed(op_store, Filter(ids=(nobody,))) == []


async def test_retry_brings_back_all_that_failed_or_was_cancelled(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2", "node-3"])
    good, bad, unwanted = await begin(op_store)
    await op_store.wish(OP, Wish.CANCEL)
    await op_store.commit(
        [
            replace(good, state=State.SUCCEEDED),
            replace(bad, state=State.FAILED, failures=10, problem=TROUBLE),
            replace(unwanted, state=State.CANCELLED),
        ],
        ONE,
        OPEN_FOR,
    )
    await op_store.clear_history()
    operation = await op_store.retry(OP, None, "bob")
    assert (operation.wish, operation.finished_at, operation.dismissed) == (Wish.RUN, None, False)
    states = {step.node: (step.state, step.failures, step.attempt) for step in await the_steps(op_store)}
    assert states == {
        "node-1": (State.SUCCEEDED, 0, 1),
        "node-2": (State.PENDING, 0, 1),
        "node-3": (State.PENDING, 0, 1),
    }
    assert (await the_steps(op_store))[1].reason == "asked for again by bob"
    assert [operation.id for operation in (await op_store.live()).operations] == [OP]


async def test_retry_of_one_node_leaves_the_others(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    await end(op_store, state=State.FAILED, problem=TROUBLE)
    await op_store.retry(OP, [NodeId("node-2")], "bob")
    assert [step.state for step in await the_steps(op_store)] == [State.FAILED, State.PENDING]


async def test_retry_without_anything_to_retry_is_a_conflict(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1"])
    await end(op_store)
    for nodes in (None, [NodeId("node-1")], [NodeId("node-9")]):
        with pytest.raises(Conflict, match="nothing to retry"):
            await op_store.retry(OP, nodes, "bob")


async def test_load_is_not_retried_but_asked_for_anew(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(kind=Kind.LOAD), ["node-1"])
    await end(op_store, state=State.FAILED, problem=TROUBLE)
    with pytest.raises(Conflict, match="is a load"):
        await op_store.retry(OP, None, "bob")


async def test_retry_is_the_newest_wish_and_replaces_its_opposite(op_store: OpStore) -> None:
    await submitted(op_store)
    await end(op_store, state=State.FAILED, problem=TROUBLE)
    await submitted(op_store, an_operation("op-2", Kind.REMOVE))
    await op_store.retry(OP, None, "bob")
    [step] = await the_steps(op_store, "op-2")
    assert step.replaced_by == OP


async def test_dismissed_operations_are_in_the_history_alone_until_that_is_cleared(op_store: OpStore) -> None:
    for op in ("op-1", "op-2", "op-3"):
        await submitted(op_store, an_operation(op, backend=op))
    for op in ("op-1", "op-2"):
        await end(op_store, op)
    assert await op_store.dismiss([OP, OpId("op-3")]) == 1
    assert await listed(op_store) == ["op-3", "op-2"]
    assert await listed(op_store, Filter(history=True)) == ["op-3", "op-2", "op-1"]
    assert await op_store.clear_history() == 2
    assert await op_store.clear_history() == 0
    assert await listed(op_store) == await listed(op_store, Filter(history=True)) == ["op-3"]
    assert await listed(op_store, Filter(dismissed=True)) == ["op-3", "op-2", "op-1"]


# Looking.


async def test_listing_is_filtered_and_newest_first(op_store: OpStore) -> None:
    await submitted(op_store, an_operation("op-1"), ["node-1"])
    await submitted(op_store, an_operation("op-2", backend="whisper"), ["node-1", "node-2"])
    await submitted(op_store, an_operation("op-3", backend="whisper"), ["node-3"])
    await end(op_store, "op-2")
    assert await listed(op_store) == ["op-3", "op-2", "op-1"]
    assert await listed(op_store, Filter(limit=1)) == ["op-3"]
    assert await listed(op_store, Filter(finished=True)) == ["op-2"]
    assert await listed(op_store, Filter(finished=False)) == ["op-3", "op-1"]
    assert await listed(op_store, Filter(backend="whisper")) == ["op-3", "op-2"]
    assert await listed(op_store, Filter(node=NodeId("node-1"))) == ["op-2", "op-1"]
    assert await listed(op_store, Filter(ids=(OpId("op-3"), OpId("op-1")))) == ["op-3", "op-1"]


async def test_however_many_loads_there_are_other_kinds_are_found_among_them(op_store: OpStore) -> None:
    await submitted(op_store, an_operation("install"))
    for number in range(3):
        await submitted(op_store, an_operation(f"load-{number}", Kind.LOAD, backend=f"b{number}"))
    backends_only = Filter(kinds=OF_BACKENDS, limit=2)
    assert await listed(op_store, backends_only) == ["install"]
    assert await listed(op_store, Filter(kinds=frozenset({Kind.LOAD}), limit=2)) == ["load-2", "load-1"]


async def test_operations_are_found_by_their_model(op_store: OpStore) -> None:
    for number, model in enumerate(("qwen", "smollm2", "qwen")):
        operation = an_operation(f"op-{number}", Kind.LOAD)
        target = ReplicaTarget(ReplicaKey(model, number))
        await submitted(op_store, replace(operation, target=target), [f"node-{number}"])
    assert await listed(op_store, Filter(model="qwen")) == ["op-2", "op-0"]
    assert await listed(op_store, Filter(model="qw%")) == []


async def test_pages_follow_each_other_whatever_comes_meanwhile(op_store: OpStore) -> None:
    for number in range(5):
        await submitted(op_store, an_operation(f"op-{number}", backend=f"b{number}"))
    first = await op_store.views(Filter(limit=2))
    await submitted(op_store, an_operation("newer", backend="newer"))
    await end(op_store, "op-3")
    second = await op_store.views(Filter(limit=2, before=first[-1].number))
    assert [view.operation.id for view in (*first, *second)] == ["op-4", "op-3", "op-2", "op-1"]
    assert await listed(op_store, Filter(before=second[-1].number)) == ["op-0"]


async def test_operations_are_found_by_the_beginning_of_their_ids(op_store: OpStore) -> None:
    for op in ("aa-1", "ab-1", "a_-1"):
        await submitted(op_store, an_operation(op, backend=op))
    assert await listed(op_store, Filter(id_begins="aa")) == ["aa-1"]
    assert await listed(op_store, Filter(id_begins="a_")) == ["a_-1"]


async def test_live_holds_all_steps_of_operations_that_are_not_over(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    await submitted(op_store, an_operation("op-2", backend="whisper"), ["node-1"])
    await end(op_store, "op-2")
    first, _ = await begin(op_store)
    await op_store.commit([replace(first, state=State.SUCCEEDED)], ONE, OPEN_FOR)
    live = await op_store.live()
    assert [operation.id for operation in live.operations] == [OP]
    assert [(step.node, step.state) for step in live.steps] == [
        ("node-1", State.SUCCEEDED),
        ("node-2", State.RUNNING),
    ]


async def test_live_takes_as_many_queries_for_many_operations_as_for_one(op_store: OpStore) -> None:
    async def queries() -> int:
        statements: list[str] = []

        def count(_: object, __: object, statement: str, *___: object) -> None:
            statements.append(statement)

        event.listen(Engine, "before_cursor_execute", count)
        try:
            await op_store.live()
        finally:
            event.remove(Engine, "before_cursor_execute", count)
        return len(statements)

    await submitted(op_store)
    of_one = await queries()
    for number in range(5):
        await submitted(op_store, an_operation(f"op-{number}", backend=f"b-{number}"), ["node-1", "node-2"])
    # With those that begin a transaction and ask for the time, and one for steps that were not known before.
    assert await queries() == of_one <= 6


async def test_changes_are_given_in_their_order_and_once_each(op_store: OpStore) -> None:
    for op in ("op-1", "op-2", "op-3"):
        await submitted(op_store, an_operation(op, backend=op))
    seen, newest = await op_store.changed_since(0, 100)
    assert [view.operation.id for view in seen] == ["op-1", "op-2", "op-3"]
    assert newest == seen[-1].change
    await op_store.wish(OP, Wish.PAUSE)
    later, newest = await op_store.changed_since(newest, 100)
    assert [view.operation.id for view in later] == [OP]
    assert await op_store.changed_since(newest, 100) == ([], newest)


async def test_reader_with_a_limit_goes_on_where_it_stopped(op_store: OpStore) -> None:
    for op in ("op-1", "op-2", "op-3"):
        await submitted(op_store, an_operation(op, backend=op), ["node-1"])
    every = [step for op in ("op-1", "op-2", "op-3") for step in await the_steps(op_store, op)]
    await op_store.commit(
        [replace(step, why=because(StepCause.NOTE, "together")) for step in every], ONE, OPEN_FOR
    )
    seen, after = [], 0
    while page := (await op_store.changed_since(after, 1))[0]:
        seen.append(page[0].operation.id)
        after = page[0].change
    assert seen == ["op-1", "op-2", "op-3"]


# Bounds.


async def test_oldest_finished_operations_are_forgotten_with_all_that_hangs_on_them(
    database: Database, op_store: OpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_KEPT_MAX", 3)
    await submitted(op_store, an_operation("waits", backend="whisper"))
    for number in range(6):
        await submitted(op_store, an_operation(f"op-{number}"))
        await begin(op_store, f"op-{number}")
        await end(op_store, f"op-{number}")
    assert await listed(op_store) == ["op-5", "op-4", "op-3", "waits"]
    assert await row_count(database, steps) == 4
    assert await row_count(database, attempts) == 3


async def test_loads_and_unloads_push_out_each_other_and_nothing_that_people_asked_for(
    op_store: OpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_KEPT_MAX", 2)
    monkeypatch.setattr(limits, "MODEL_OPERATIONS_KEPT_MAX", 2)
    for number, kind in enumerate((Kind.INSTALL, *(Kind.LOAD, Kind.UNLOAD) * 3)):
        op = f"op-{number}"
        await submitted(op_store, an_operation(op, kind))
        await begin(op_store, op)
        await end(op_store, op)
    assert await listed(op_store) == ["op-6", "op-5", "op-0"]


async def test_operation_on_many_nodes_is_written_in_one_go(database: Database, op_store: OpStore) -> None:
    nodes = [f"node-{number:05}" for number in range(2000)]
    await submitted(op_store, an_operation(), nodes)
    await submitted(op_store, an_operation("op-2", Kind.REMOVE), nodes)
    assert await row_count(database, steps) == 4000
    assert all(step.replaced_by == "op-2" for step in await the_steps(op_store))
    assert len(await begin(op_store)) == 2000
    assert len(await end(op_store)) == 2000
    assert await row_count(database, operations) == 2
