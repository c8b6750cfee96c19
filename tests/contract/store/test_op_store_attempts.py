"""OpStore: how steps move on, and what is kept of their attempts."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import anyio
import pytest
from sqlalchemy import Connection, Update, update

from remuda.core import limits
from remuda.core.errors import Problem
from remuda.core.ids import BootId, NodeId
from remuda.fleet.ports import FleetStore, Note
from remuda.fleet.verdicts import BackendInventory
from remuda.ops.model import Attempt, DoneWithNote, Ending, Kind, NotNeeded, OpId, Outcome, Stage, State, Step
from remuda.ops.ports import OpenRequest, OpStore, Progress
from remuda.ops.reasons import StepCause, because
from remuda.store.database import Database
from remuda.store.ops import SqlOpStore
from remuda.store.schema import steps
from remuda.wire.nodes import InstalledArtifact
from tests.contract.store.builders import registered
from tests.support.op_builders import (
    BOOT,
    ONE,
    OPEN_FOR,
    TROUBLE,
    TWO,
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

OP, NODE = OpId("op-1"), NodeId("node-1")


async def history(store: OpStore) -> Sequence[Attempt]:
    return (await store.view(OP)).attempts


async def only_request(store: OpStore) -> OpenRequest:
    (request,) = (await store.live()).requests
    return request


async def change(store: OpStore) -> int:
    return (await store.changed_since(0, 1))[1]


# Commits.


async def test_step_is_written_as_given_with_a_new_version(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await the_steps(op_store)
    wanted = replace(
        begun(step),
        problem=TROUBLE,
        failures=2,
        why=because(StepCause.OTHER_OPERATION, "op-0"),
        rolls_back=True,
    )
    (written,) = await op_store.commit([wanted], ONE, OPEN_FOR)
    assert written == replace(wanted, version=step.version + 1)
    assert await the_steps(op_store) == (written,)


async def test_of_two_commits_of_the_same_version_the_first_wins(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    first, second = await the_steps(op_store)
    await op_store.commit([begun(first)], ONE, OPEN_FOR)
    won = await op_store.commit([replace(first, state=State.CANCELLED), begun(second)], TWO, OPEN_FOR)
    assert [step.node for step in won] == ["node-2"]
    assert [step.state for step in await the_steps(op_store)] == [State.RUNNING, State.RUNNING]


async def test_commit_that_loses_everything_is_no_change(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await the_steps(op_store)
    before = await change(op_store)
    stranger = replace(step, op=OpId("nobody"))
    assert list(await op_store.commit([replace(step, version=7), stranger], ONE, OPEN_FOR)) == []
    assert await change(op_store) == before


async def test_operation_is_finished_with_its_last_step(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    first, second = await begin(op_store)
    await op_store.commit([ended(first, State.SUCCEEDED)], ONE, OPEN_FOR)
    assert (await op_store.view(OP)).operation.finished_at is None
    await op_store.commit([ended(second, State.FAILED, TROUBLE)], ONE, OPEN_FOR)
    assert (await op_store.view(OP)).operation.finished_at is not None
    assert (await op_store.live()).steps == ()


async def test_steps_of_several_operations_are_committed_together(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(), ["node-1"])
    await submitted(op_store, an_operation("op-2", backend="whisper"), ["node-1"])
    both = [*await the_steps(op_store), *await the_steps(op_store, "op-2")]
    assert len(await op_store.commit([begun(step) for step in both], ONE, OPEN_FOR)) == 2
    assert [request.op for request in (await op_store.live()).requests] == ["op-1", "op-2"]


# Requests.


async def test_attempt_that_begins_has_an_open_request(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    request = await only_request(op_store)
    assert (request.op, request.node, request.attempt, request.ended) == (OP, NODE, 1, False)
    assert request.open_until - request.begun_at == OPEN_FOR


async def test_request_is_held_open_without_counting_as_a_change(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    before, at = await only_request(op_store), await change(op_store)
    await op_store.hold(OP, NODE, 1, timedelta(hours=1))
    held = await only_request(op_store)
    assert held.open_until > before.open_until + timedelta(minutes=50)
    assert await change(op_store) == at


async def test_hold_of_an_earlier_attempt_is_ignored(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await begin(op_store)
    (step,) = await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    await op_store.commit([begun(step)], ONE, OPEN_FOR)
    before = await only_request(op_store)
    await op_store.hold(OP, NODE, 1, timedelta(hours=1))
    assert await only_request(op_store) == before


def _execute(statement: Update, connection: Connection, _: datetime) -> None:
    connection.execute(statement)


async def test_reason_written_by_a_release_that_knows_only_words_counts(
    op_store: OpStore, database: Database
) -> None:
    """It leaves the value as it was, which then says something else."""
    await submitted(op_store)
    (step,) = await the_steps(op_store)
    (kept,) = await op_store.commit([replace(step, why=because(StepCause.RETRY))], ONE, OPEN_FOR)
    assert kept.why == because(StepCause.RETRY)
    for words, meant in (
        ("paused", because(StepCause.PAUSED)),
        ("the moon is full", because(StepCause.OTHER, "the moon is full")),
        ("", None),
    ):
        written = update(steps).values(reason=words, version=steps.c.version + 1)
        await database.transact(partial(_execute, written))
        (read,) = await the_steps(op_store)
        assert read.why == meant


async def test_reply_that_nothing_was_to_be_done_is_kept_and_is_no_problem(op_store: OpStore) -> None:
    unchanged = DoneWithNote("already there; nothing to do")
    await submitted(op_store)
    await begin(op_store)
    await op_store.answer(OP, NODE, Outcome(1, unchanged))
    assert (await only_request(op_store)).ending == unchanged
    [attempt] = (await op_store.view(OP)).attempts
    assert attempt.problem is None


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        (Kind.LOAD, NotNeeded("it was used again")),
        (Kind.UNLOAD, NotNeeded("it was used again")),
        (Kind.INSTALL, Problem("cancelled", "it was used again")),
    ],
)
async def test_only_a_load_or_an_unload_is_found_not_to_be_needed(
    op_store: OpStore, kind: Kind, ending: Ending
) -> None:
    """Other releases tell it by a problem of this code."""
    await submitted(op_store, an_operation(kind=kind))
    await begin(op_store)
    await op_store.answer(OP, NODE, Outcome(1, Problem("cancelled", "it was used again")))
    assert (await only_request(op_store)).ending == ending
    assert (await history(op_store))[0].problem == Problem("cancelled", "it was used again")


async def test_attempt_that_was_not_needed_is_told_as_every_release_tells_it(op_store: OpStore) -> None:
    await submitted(op_store, an_operation(kind=Kind.LOAD))
    await begin(op_store)
    await op_store.answer(OP, NODE, Outcome(1, NotNeeded("it was used again")))
    assert (await only_request(op_store)).ending == NotNeeded("it was used again")
    assert (await history(op_store))[0].problem == Problem("cancelled", "it was used again")


async def test_first_reply_counts(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    await op_store.answer(OP, NODE, Outcome(1, TROUBLE))
    before = await change(op_store)
    await op_store.answer(OP, NODE, Outcome(1))
    request = await only_request(op_store)
    assert (request.ended, request.ending) == (True, TROUBLE)
    assert await change(op_store) == before


async def test_reply_to_an_earlier_attempt_is_ignored(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await begin(op_store)
    (step,) = await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    await op_store.commit([begun(step)], ONE, OPEN_FOR)
    await op_store.answer(OP, NODE, Outcome(1))
    await op_store.answer(OP, NODE, Outcome(3))
    assert not (await only_request(op_store)).ended


async def test_reply_after_the_end_is_ignored(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    await end(op_store, state=State.CANCELLED)
    before = await op_store.view(OP)
    await op_store.answer(OP, NODE, Outcome(1, TROUBLE))
    assert await op_store.view(OP) == before


async def test_step_that_waits_again_has_no_request(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await begin(op_store)
    await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    assert (await op_store.live()).requests == ()


# History.


async def test_every_attempt_is_kept_with_what_ended_it(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await begin(op_store)
    (step,) = await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    (step,) = await op_store.commit([begun(step)], TWO, OPEN_FOR)
    await op_store.commit([replace(step, state=State.SUCCEEDED, problem=None)], TWO, OPEN_FOR)
    lines = await history(op_store)
    assert [(line.number, line.stage, line.problem) for line in lines] == [
        (1, Stage.APPLY, TROUBLE),
        (2, Stage.APPLY, None),
    ]
    assert all(line.ended_at is not None and line.ended_at >= line.begun_at for line in lines)


async def test_problem_of_an_earlier_attempt_is_not_blamed_on_a_later_one(op_store: OpStore) -> None:
    await submitted(op_store)
    (step,) = await begin(op_store)
    (step,) = await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    (step,) = await op_store.commit([begun(step)], ONE, OPEN_FOR)
    applied = replace(step, state=State.PENDING, stage=Stage.PROVE, failures=0)
    await op_store.commit([applied], ONE, OPEN_FOR)
    assert [line.problem for line in await history(op_store)] == [TROUBLE, None]


@pytest.mark.parametrize("before", [None, TROUBLE])
async def test_proof_that_failed_is_kept_with_its_problem(op_store: OpStore, before: Problem | None) -> None:
    await submitted(op_store)
    (step,) = await the_steps(op_store)
    proving = replace(begun(step), stage=Stage.PROVE, problem=before)
    (step,) = await op_store.commit([proving], ONE, OPEN_FOR)
    going_back = replace(step, state=State.PENDING, stage=Stage.ROLL_BACK, problem=TROUBLE, failures=0)
    (step,) = await op_store.commit([going_back], ONE, OPEN_FOR)
    (step,) = await op_store.commit([begun(step)], ONE, OPEN_FOR)
    await op_store.commit([replace(step, state=State.FAILED)], ONE, OPEN_FOR)
    assert [(line.stage, line.problem) for line in await history(op_store)] == [
        (Stage.PROVE, TROUBLE),
        (Stage.ROLL_BACK, None),
    ]


async def test_what_the_worker_replied_stays_in_the_history(op_store: OpStore) -> None:
    said = Problem("disk_full", "the disk is full")
    await submitted(op_store)
    (step,) = await begin(op_store)
    await op_store.answer(OP, NODE, Outcome(1, said))
    (answered,) = await history(op_store)
    await op_store.commit([ended(step, State.FAILED, TROUBLE)], ONE, OPEN_FOR)
    assert await history(op_store) == (answered,)
    assert answered.problem == said


async def test_only_the_latest_attempts_of_a_step_are_kept(
    op_store: OpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTEMPTS_KEPT_MAX", 3)
    await submitted(op_store, an_operation(), ["node-1", "node-2"])
    current: Sequence[Step] = await the_steps(op_store)
    for _ in range(5):
        current = list(await op_store.commit([begun(step) for step in current], ONE, OPEN_FOR))
        failed = [ended(step, State.PENDING, TROUBLE) for step in current]
        current = list(await op_store.commit(failed, ONE, OPEN_FOR))
    kept = [(line.node, line.number) for line in await history(op_store)]
    assert kept == [(node, number) for node in ("node-1", "node-2") for number in (3, 4, 5)]


# Progress.


async def progress_of(store: OpStore) -> Sequence[tuple[int, float]]:
    return [(progress.attempt, progress.fraction) for _, progress in (await store.view(OP)).progress]


async def test_progress_is_kept_with_the_time_of_the_store(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    before = await change(op_store)
    told = Progress(1, 0.25, "downloading", "layer-1", 25, 100)
    await op_store.note_progress({(OP, NODE): told})
    ((node, kept),) = (await op_store.view(OP)).progress
    assert node == NODE
    assert kept == replace(told, at=kept.at)
    assert kept.at is not None
    assert kept.at.utcoffset() == timedelta()
    assert await change(op_store) > before


async def test_progress_never_falls_within_an_attempt(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    for fraction in (0.5, 0.25, 0.5, 0.75, 0.0):
        await op_store.note_progress({(OP, NODE): Progress(1, fraction)})
    assert await progress_of(op_store) == [(1, 0.75)]


async def test_progress_of_others_is_kept_only_where_their_frontend_has_kept_nothing_for_a_while(
    op_store: OpStore,
) -> None:
    await submitted(op_store)
    await begin(op_store)
    minute = timedelta(minutes=1)
    await op_store.note_progress({(OP, NODE): Progress(1, 0.1)}, minute)
    assert await progress_of(op_store) == [], "the attempt has just begun: its own frontend will tell"
    await op_store.note_progress({(OP, NODE): Progress(1, 0.2)})
    await op_store.note_progress({(OP, NODE): Progress(1, 0.3)}, minute)
    assert await progress_of(op_store) == [(1, 0.2)]
    await op_store.note_progress({(OP, NODE): Progress(1, 0.4)}, timedelta(microseconds=1))
    assert await progress_of(op_store) == [(1, 0.4)]


async def test_progress_of_another_attempt_is_ignored(op_store: OpStore) -> None:
    await submitted(op_store)
    await op_store.note_progress({(OP, NODE): Progress(1, 0.5)})
    (step,) = await begin(op_store)
    await op_store.note_progress({(OP, NODE): Progress(1, 0.9)})
    (step,) = await op_store.commit([ended(step, State.PENDING, TROUBLE)], ONE, OPEN_FOR)
    await op_store.commit([begun(step)], ONE, OPEN_FOR)
    assert await progress_of(op_store) == []
    await op_store.note_progress({(OP, NODE): Progress(1, 0.95)})
    await op_store.note_progress({(OP, NODE): Progress(2, 0.1)})
    assert await progress_of(op_store) == [(2, 0.1)]


async def test_replies_that_come_at_once_are_all_kept(op_store: OpStore) -> None:
    nodes = [f"node-{number:02}" for number in range(50)]
    await submitted(op_store, nodes=nodes)
    await op_store.commit([begun(step) for step in await the_steps(op_store)], ONE, OPEN_FOR)
    before = await change(op_store)
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(op_store.answer, OP, NodeId(node), Outcome(1, TROUBLE))
    requests = (await op_store.live()).requests
    assert [(one.node, one.ended, one.ending) for one in requests] == [(n, True, TROUBLE) for n in nodes]
    assert before < await change(op_store) < before + len(nodes)


async def test_progress_of_many_nodes_is_one_change(op_store: OpStore) -> None:
    nodes = [NodeId(f"node-{number:03}") for number in range(600)]  # More than one statement carries.
    await submitted(op_store, nodes=nodes)
    await op_store.commit([begun(step) for step in await the_steps(op_store)], ONE, OPEN_FOR)
    before = await change(op_store)
    await op_store.note_progress({(OP, node): Progress(1, 0.5) for node in nodes})
    assert await progress_of(op_store) == [(1, 0.5)] * len(nodes)
    assert await change(op_store) == before + 1


async def test_progress_after_the_end_is_ignored(op_store: OpStore) -> None:
    await submitted(op_store)
    await begin(op_store)
    await op_store.note_progress({(OP, NODE): Progress(1, 0.5)})
    await op_store.answer(OP, NODE, Outcome(1))
    before = await change(op_store)
    await op_store.note_progress({(OP, NODE): Progress(1, 0.9)})
    await end(op_store)
    await op_store.note_progress({(OP, NODE): Progress(1, 1.0)})
    assert await progress_of(op_store) == [(1, 0.5)]
    assert await change(op_store) == before + 1


# Inventories.


async def inventories(store: OpStore) -> Sequence[BackendInventory]:
    return (await store.live()).inventories


async def test_inventories_of_all_nodes_can_be_had(database: Database, fleet_store: FleetStore) -> None:
    store = SqlOpStore(database)
    nodes = [(await registered(fleet_store, name)).id for name in ("alpha", "beta")]
    for node in nodes:
        await store.note_inventory(node, BOOT, [InstalledArtifact(name=node)])
    listed = {one.node: [backend.name for backend in one.backends] for one in await store.inventories()}
    assert listed == {node: [node] for node in nodes}


async def test_latest_inventory_of_a_node_with_something_to_do_is_live(
    fleet_store: FleetStore, op_store: OpStore
) -> None:
    busy, idle = await registered(fleet_store, "busy"), await registered(fleet_store, "idle")
    await submitted(op_store, an_operation(), [busy.id])
    listed = (InstalledArtifact(name="llama-cpp", digest="sha256:1"), InstalledArtifact(name="whisper"))
    for node in (busy, idle):
        await op_store.note_inventory(node.id, BOOT, [])
    await op_store.note_inventory(busy.id, BootId("boot-2"), listed)
    (found,) = await inventories(op_store)
    assert found == BackendInventory(busy.id, BootId("boot-2"), found.listed_at, listed)
    assert timedelta() <= (await op_store.live()).now - found.listed_at < timedelta(minutes=1)


async def test_inventory_goes_with_its_node(fleet_store: FleetStore, op_store: OpStore) -> None:
    node = await registered(fleet_store)
    await submitted(op_store, an_operation(), [node.id])
    await op_store.note_inventory(node.id, BOOT, [])
    await fleet_store.remove(node.id, Note("removed"))
    await op_store.note_inventory(node.id, BOOT, [])
    assert await inventories(op_store) == ()


# Versions that were tried.


async def test_steps_that_tried_a_new_version_are_found_with_the_time(database: Database) -> None:
    store = SqlOpStore(database)
    assert await store.tried() == []
    operation = an_operation(kind=Kind.UPGRADE)
    await store.submit(operation, its_steps(operation, "bad", "good", "waits"))
    bad, good, _ = await begin(store)
    await store.commit([replace(ended(good, State.SUCCEEDED), stage=Stage.PROVE)], ONE, OPEN_FOR)
    assert await store.tried() == [], "nothing has failed"
    before = (await store.live()).now
    await store.commit([replace(ended(bad, State.FAILED, TROUBLE), stage=Stage.ROLL_BACK)], ONE, OPEN_FOR)
    [(found, at)] = await store.tried()
    assert (found.node, found.problem, found.goal) == ("bad", TROUBLE, bad.goal)
    assert before <= at <= (await store.live()).now
    again = an_operation("op-2", Kind.UPGRADE, backend="again")
    await store.submit(again, its_steps(again, "good"))
    [running] = await begin(store, "op-2")
    await store.commit([replace(ended(running, State.SUCCEEDED), stage=Stage.PROVE)], ONE, OPEN_FOR)
    assert [step.node for step, _ in await store.tried()] == ["bad", "good"]
