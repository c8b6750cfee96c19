"""ReplicaStore: how replicas are claimed, move on and go, with several frontends at it."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import update

from remuda.core.errors import Conflict
from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.model import Node
from remuda.fleet.ports import FleetStore, Note
from remuda.ops.model import (
    Goal,
    Kind,
    Operation,
    OpId,
    ReplicaTarget,
    RollOut,
    Source,
    Step,
    UnloadCause,
    UnloadReason,
    Wish,
)
from remuda.ops.ports import OpStore
from remuda.scheduler.model import Replica, ReplicaState
from remuda.store.database import Database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops_codec import StoredReason
from remuda.store.replicas import SqlReplicaStore
from remuda.store.schema import operations, replicas
from tests.contract.store.builders import registered, row_count
from tests.support.op_builders import LONG_AGO, end

pytestmark = pytest.mark.anyio

Stores = tuple[SqlReplicaStore, SqlReplicaStore]
A_WHILE = timedelta(minutes=1)


@pytest.fixture
def store(database: Database) -> SqlReplicaStore:
    return SqlReplicaStore(database)


@pytest.fixture
def stores(database: Database, other_frontend: Database) -> Stores:
    return SqlReplicaStore(database), SqlReplicaStore(other_frontend)


@pytest.fixture
async def node(fleet_store: FleetStore) -> Node:
    return await registered(fleet_store)


def a_replica(node: NodeId, model: str = "qwen", index: int = 0, op: str = "load-1") -> Replica:
    return Replica(
        key=ReplicaKey(model, index),
        node=node,
        state=ReplicaState.STAGING,
        op=OpId(op),
        backend="llama-cpp",
        revision="abc",
        memory_bytes=6 << 30,
        in_vram=True,
        parallel=4,
        concurrency_groups=("big", "other"),
    )


def its_load(replica: Replica) -> tuple[Operation, Step]:
    source, target = Source(replica.backend), ReplicaTarget(replica.key, "abc")
    operation = Operation(replica.op, Kind.LOAD, source, RollOut(1), "router", LONG_AGO, target=target)
    goal = Goal((str(replica.key),))
    step = Step(replica.op, replica.node, "alpha", Kind.LOAD, source, goal, target=target)
    return operation, step


async def claim(
    store: SqlReplicaStore,
    replica: Replica,
    seen: int | None = None,
    evict: Collection[ReplicaKey] = (),
    *,
    alone: bool = True,
) -> Replica | None:
    operation, step = its_load(replica)
    seen = (await store.replicas()).change if seen is None else seen
    return await store.claim(replica, operation, step, seen, evict, alone=alone)


async def claimed(store: SqlReplicaStore, replica: Replica) -> Replica:
    got = await claim(store, replica)
    assert got is not None
    return got


async def loaded(store: SqlReplicaStore, replica: Replica) -> Replica:
    before = await claimed(store, replica)
    return moved(await store.move(before, replace(before, state=ReplicaState.LOADED)))


# Claims.


async def test_claimed_replica_is_read_back_with_its_operation(
    store: SqlReplicaStore, op_store: OpStore, node: Node
) -> None:
    got = await claimed(store, a_replica(node.id))
    found = await store.replicas()
    assert found.rows == (got,)
    assert got.created_at is not None
    assert abs(found.now - got.created_at) < A_WHILE
    wanted = a_replica(node.id)
    assert got == replace(wanted, created_at=got.created_at, updated_at=got.created_at, change=found.change)
    view = await op_store.view(OpId("load-1"))
    assert [step.node for step in view.steps] == [node.id]
    assert view.operation.target == view.steps[0].target == ReplicaTarget(ReplicaKey("qwen", 0), "abc")


async def test_live_operations_say_in_which_life_of_its_worker_a_load_runs(
    store: SqlReplicaStore, op_store: OpStore, node: Node
) -> None:
    row = await claimed(store, a_replica(node.id))
    assert (await op_store.live()).loads == {(row.op, node.id): None}, "its files are on their way"
    row = moved(await store.move(row, replace(row, state=ReplicaState.LOADING, boot=node.boot_id)))
    assert (await op_store.live()).loads == {(row.op, node.id): node.boot_id}
    moved(await store.move(row, replace(row, state=ReplicaState.LOADED)))
    assert (await op_store.live()).loads == {}


def moved(row: Replica | None) -> Replica:
    assert row is not None
    return row


async def test_claim_by_what_is_no_longer_so_writes_nothing(
    database: Database, store: SqlReplicaStore, node: Node
) -> None:
    seen = (await store.replicas()).change
    await claimed(store, a_replica(node.id, "other"))
    assert await claim(store, a_replica(node.id, op="load-2"), seen) is None
    assert await row_count(database, replicas) == 1
    assert await row_count(database, operations) == 1


@pytest.mark.parametrize("index", [0, 1])
async def test_model_that_is_on_its_way_is_not_claimed_twice(
    database: Database, store: SqlReplicaStore, node: Node, index: int
) -> None:
    first = await claimed(store, a_replica(node.id))
    assert await store.move(first, replace(first, state=ReplicaState.LOADING)) is not None
    with pytest.raises(Conflict, match="by operation load-1"):
        await claim(store, a_replica(node.id, index=index, op="load-2"))
    assert await row_count(database, operations) == 1


async def test_second_replica_is_claimed_when_the_first_is_loaded(store: SqlReplicaStore, node: Node) -> None:
    await loaded(store, a_replica(node.id))
    await claimed(store, a_replica(node.id, index=1, op="load-2"))
    assert [row.key.index for row in (await store.replicas()).rows] == [0, 1]


async def test_number_in_use_is_not_claimed(store: SqlReplicaStore, node: Node) -> None:
    await loaded(store, a_replica(node.id))
    with pytest.raises(Conflict, match="qwen#0 is there already; it is loaded"):
        await claim(store, a_replica(node.id, op="load-2"))


async def test_evicted_replicas_are_unloading_from_the_same_change_on(
    store: SqlReplicaStore, node: Node
) -> None:
    old = [await loaded(store, a_replica(node.id, name, op=name)) for name in ("a", "b", "c")]
    got = await claim(store, a_replica(node.id), evict=[old[0].key, old[2].key])
    assert got is not None
    rows = {row.key.model: row for row in (await store.replicas()).rows}
    assert {name: row.state for name, row in rows.items()} == {
        "a": ReplicaState.UNLOADING,
        "b": ReplicaState.LOADED,
        "c": ReplicaState.UNLOADING,
        "qwen": ReplicaState.STAGING,
    }
    makes_room = UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey("qwen", 0))
    assert rows["a"].why == rows["c"].why == makes_room
    assert rows["a"].change == rows["c"].change == got.change


async def test_claim_for_a_node_that_was_removed_is_to_look_again(
    database: Database, store: SqlReplicaStore, fleet_store: FleetStore, node: Node
) -> None:
    await fleet_store.remove(node.id, Note("removed"))
    assert await claim(store, a_replica(node.id)) is None
    assert await row_count(database, operations) == 0


async def test_claim_sent_again_is_the_same_claim(
    database: Database, store: SqlReplicaStore, node: Node
) -> None:
    first = await claimed(store, a_replica(node.id))
    assert await claim(store, a_replica(node.id), seen=0) == first
    assert await row_count(database, operations) == 1


async def test_load_under_way_whose_replica_was_forgotten_is_joined(
    database: Database, store: SqlReplicaStore, node: Node
) -> None:
    assert await store.remove(await claimed(store, a_replica(node.id)))
    got = await claimed(store, a_replica(node.id, op="load-2"))
    assert got.op == "load-1"
    assert await row_count(database, operations) == 1


async def test_claim_ends_an_unload_that_waits_for_the_same_place(
    store: SqlReplicaStore, op_store: OpStore, node: Node
) -> None:
    operation, step = its_load(a_replica(node.id, op="unload-1"))
    unload = replace(operation, kind=Kind.UNLOAD)
    await op_store.submit(unload, [replace(step, kind=Kind.UNLOAD)])
    await claimed(store, a_replica(node.id))
    [marked] = (await op_store.view(OpId("unload-1"))).steps
    assert marked.replaced_by == "load-1"


async def test_of_many_claims_at_once_for_one_model_exactly_one_wins(
    database: Database, stores: Stores, node: Node
) -> None:
    seen = (await stores[0].replicas()).change
    won: list[Replica] = []
    refused: list[str] = []

    async def try_it(number: int) -> None:
        mine = a_replica(node.id, index=number % 3, op=f"load-{number}")
        try:
            got = await claim(stores[number % 2], mine, seen)
            won.extend([] if got is None else [got])
        except Conflict as conflict:
            refused.append(conflict.message)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(try_it, number)
    [winner] = won
    assert len(refused) == 39
    assert all(f"by operation {winner.op}" in message for message in refused)
    assert (await stores[0].replicas()).rows == (winner,)
    assert await row_count(database, operations) == 1


async def test_of_many_claims_at_once_for_the_same_room_exactly_one_wins(stores: Stores, node: Node) -> None:
    seen = (await stores[0].replicas()).change
    won: list[Replica | None] = []

    async def try_it(number: int) -> None:
        mine = a_replica(node.id, f"model-{number}", op=f"load-{number}")
        won.append(await claim(stores[number % 2], mine, seen))

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(try_it, number)
    assert len([one for one in won if one is not None]) == 1
    assert len((await stores[0].replicas()).rows) == 1


# Moves, removals, uses.


async def test_move_writes_what_changed_and_keeps_the_rest(store: SqlReplicaStore, node: Node) -> None:
    first = await claimed(store, a_replica(node.id))
    wanted = replace(
        first,
        state=ReplicaState.LOADED,
        address="10.0.0.5:50052",
        protocol="http",
        path="/v1",
        instance="i-1",
        boot=BootId("boot-1"),
        memory_bytes=7,
        in_vram=False,
        parallel=2,
        why=UnloadReason(UnloadCause.UNKNOWN, text="because"),
        created_at=None,
    )
    got = await store.move(first, wanted)
    assert got is not None
    assert got == replace(
        wanted, created_at=first.created_at, updated_at=got.updated_at, change=first.change + 1
    )
    assert (await store.replicas()).rows == (got,)


async def test_move_from_an_earlier_state_writes_nothing(store: SqlReplicaStore, node: Node) -> None:
    first = await claimed(store, a_replica(node.id))
    second = await store.move(first, replace(first, state=ReplicaState.LOADING))
    assert await store.move(first, replace(first, state=ReplicaState.LOADED)) is None
    assert (await store.replicas()).rows == (second,)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("", None),
        ("nobody asked for it", UnloadReason(UnloadCause.IDLE)),
        ("its model was removed", UnloadReason(UnloadCause.MODEL_REMOVED)),
        ("asked for by ada", UnloadReason(UnloadCause.ASKED, by="ada")),
        ("makes room for b#7#1", UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey("b#7", 1))),
        ("makes room for all", UnloadReason(UnloadCause.UNKNOWN, text="makes room for all")),
    ],
)
async def test_words_of_a_release_that_knows_nothing_else_are_understood(
    database: Database, store: SqlReplicaStore, node: Node, words: str, known: UnloadReason | None
) -> None:
    """It writes them over those of this release, and leaves what it does not know as it was."""
    first = await claimed(store, a_replica(node.id))
    assert await store.move(first, replace(first, why=UnloadReason(UnloadCause.OUTDATED)))
    await database.transact(lambda connection, now: connection.execute(update(replicas).values(why=words)))
    [row] = (await store.replicas()).rows
    assert row.why == known


async def test_reason_that_only_a_later_release_knows_is_kept_in_its_words(
    database: Database, store: SqlReplicaStore, node: Node
) -> None:
    await claimed(store, a_replica(node.id))
    later = {"why": "its node is full", "reason": StoredReason("node_full")}
    await database.transact(lambda connection, now: connection.execute(update(replicas).values(later)))
    [row] = (await store.replicas()).rows
    assert row.why == UnloadReason(UnloadCause.UNKNOWN, text="its node is full")


async def test_of_many_moves_at_once_exactly_one_wins(stores: Stores, node: Node) -> None:
    first = await claimed(stores[0], a_replica(node.id))
    won: list[Replica | None] = []

    async def move(number: int) -> None:
        why = UnloadReason(UnloadCause.ASKED, by=str(number))
        won.append(await stores[number % 2].move(first, replace(first, why=why)))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(move, number)
    assert [one for one in won if one is not None] == list((await stores[0].replicas()).rows)


async def test_several_of_one_model_are_on_their_way_where_that_is_asked_for(
    store: SqlReplicaStore, node: Node
) -> None:
    await claimed(store, a_replica(node.id))
    with pytest.raises(Conflict, match="is being loaded already"):
        await claimed(store, a_replica(node.id, index=1, op="load-2"))
    assert await claim(store, a_replica(node.id, index=1, op="load-2"), alone=False)
    assert len((await store.replicas()).rows) == 2


async def test_removal_is_a_change_and_the_number_never_falls(store: SqlReplicaStore, node: Node) -> None:
    first = await claimed(store, a_replica(node.id))
    assert await store.remove(first)
    assert not await store.remove(first)
    found = await store.replicas()
    assert found.rows == ()
    assert found.change == first.change + 1 == await store.latest_change()
    again = await claimed(store, a_replica(node.id, op="load-2"))
    assert again.change == found.change + 1


async def test_replica_that_moved_is_not_removed(store: SqlReplicaStore, node: Node) -> None:
    first = await claimed(store, a_replica(node.id))
    assert await store.move(first, replace(first, state=ReplicaState.LOADED)) is not None
    assert not await store.remove(first)
    assert len((await store.replicas()).rows) == 1


async def test_use_is_kept_without_being_a_change_and_never_goes_back(
    store: SqlReplicaStore, node: Node
) -> None:
    first = await loaded(store, a_replica(node.id))
    before = (await store.replicas()).now
    await store.touch({first.key: timedelta(), ReplicaKey("nobody", 3): timedelta()})
    after = (await store.replicas()).now
    await store.touch({first.key: timedelta(hours=1)})
    await store.touch({})
    found = await store.replicas()
    used = found.rows[0].last_used
    assert used is not None
    assert before <= used <= after, "by the store's clock"
    assert found.rows == (replace(first, last_used=used),)
    assert found.change == first.change
    moved = await store.move(first, replace(first, state=ReplicaState.UNLOADING))
    assert moved is not None
    assert moved.last_used == used


async def test_removed_node_takes_its_replicas_along(
    store: SqlReplicaStore, fleet_store: FleetStore, node: Node
) -> None:
    other = await registered(fleet_store, "beta")
    gone = await loaded(store, a_replica(node.id))
    stays = await claimed(store, a_replica(other.id, "other", op="load-2"))
    await fleet_store.remove(node.id, Note("removed"))
    assert (await store.replicas()).rows == (stays,)
    assert await store.move(gone, gone) is None


async def test_failed_load_can_be_claimed_anew(store: SqlReplicaStore, op_store: OpStore, node: Node) -> None:
    first = await claimed(store, a_replica(node.id))
    await op_store.wish(first.op, Wish.CANCEL)
    await end(op_store, first.op)
    assert await store.remove(first)
    assert (await claimed(store, a_replica(node.id, op="load-2"))).op == "load-2"


async def test_nodes_removed_while_their_replicas_are_used_and_claimed_leave_none(
    stores: Stores, other_frontend: Database, fleet_store: FleetStore
) -> None:
    ids = [(await registered(fleet_store, f"node-{number:02}")).id for number in range(12)]
    for number, node in enumerate(ids):
        for model in ("a", "b"):
            await loaded(stores[0], a_replica(node, f"{model}{number}", op=f"{model}{number}"))
    keys = [row.key for row in (await stores[0].replicas()).rows]

    async def remove_all() -> None:
        for node in ids:
            await SqlFleetStore(other_frontend).remove(node, Note("removed"))

    async def use(order: int) -> None:
        for second in range(20):
            await stores[order % 2].touch(dict.fromkeys(keys[::order], timedelta(minutes=20 - second)))

    async def claim_all() -> None:
        for number, node in enumerate(ids):
            evict = [ReplicaKey(f"{model}{number}", 0) for model in ("b", "a")]
            await claim(stores[1], a_replica(node, f"c{number}", op=f"c{number}"), evict=evict)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remove_all)
        tasks.start_soon(claim_all)
        tasks.start_soon(use, 1)
        tasks.start_soon(use, -1)
    assert (await stores[0].replicas()).rows == ()


async def test_move_that_depends_on_others_is_written_only_if_none_has_changed(
    store: SqlReplicaStore, node: Node
) -> None:
    first = await loaded(store, a_replica(node.id))
    seen = (await store.replicas()).change
    await claimed(store, a_replica(node.id, index=1, op="load-2"))
    going = replace(first, state=ReplicaState.UNLOADING)
    assert await store.move(first, going, seen) is None
    assert await store.move(first, going, (await store.replicas()).change)
