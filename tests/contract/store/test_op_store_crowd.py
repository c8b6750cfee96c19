"""OpStore when many wishes come at once: each gets its own answer, and together they cost little."""

from collections.abc import Iterable
from dataclasses import replace

import anyio
import pytest
from sqlalchemy import Connection, Engine, event

from remuda.core import limits
from remuda.core.errors import Conflict, Rejected, RemudaError, Unavailable
from remuda.ops.model import Kind, Operation
from remuda.ops.ports import OpStore, Submitted
from remuda.store.database import Database
from remuda.store.ops import SqlOpStore
from remuda.store.schema import operations
from tests.contract.store.builders import row_count
from tests.support.op_builders import an_operation, its_steps

pytestmark = pytest.mark.anyio

Answers = dict[str, Submitted | RemudaError]


async def ask_at_once(store: OpStore, wanted: Iterable[Operation], node: str = "node-1") -> Answers:
    answers: Answers = {}

    async def ask(operation: Operation) -> None:
        try:
            answers[operation.id] = await store.submit(operation, its_steps(operation, node))
        except RemudaError as error:
            answers[operation.id] = error

    async with anyio.create_task_group() as callers:
        for operation in wanted:
            callers.start_soon(ask, operation)
    return answers


def taken(answers: Answers, op: str) -> Submitted:
    answer = answers[op]
    assert isinstance(answer, Submitted), answer
    return answer


def different(count: int) -> list[Operation]:
    return [an_operation(f"op-{number:04}", backend=f"b-{number}") for number in range(count)]


async def test_what_is_answered_is_what_is_there(op_store: OpStore) -> None:
    answers = await ask_at_once(op_store, different(50))
    for op in answers:
        answer = taken(answers, op)
        assert not answer.joined
        assert answer.view == await op_store.view(answer.operation.id)


async def test_a_crowd_costs_few_transactions(op_store: OpStore) -> None:
    begun = 0

    def count(_: Connection) -> None:
        nonlocal begun
        begun += 1

    event.listen(Engine, "begin", count)
    try:
        answers = await ask_at_once(op_store, different(500))
    finally:
        event.remove(Engine, "begin", count)
    assert all(isinstance(answer, Submitted) for answer in answers.values())
    assert begun <= 5


async def test_in_a_crowd_the_same_is_joined_and_the_opposite_replaces(op_store: OpStore) -> None:
    first = an_operation("first")
    same = an_operation("same")
    opposite = an_operation("opposite", Kind.REMOVE)
    once_more = replace(an_operation("once-more"), source=replace(first.source, alias="other"))
    answers = await ask_at_once(
        op_store, [an_operation("before", backend="x"), first, same, opposite, once_more]
    )
    assert (taken(answers, "same").joined, taken(answers, "same").operation.id) == (True, "first")
    replaced_by = {step.op: step.replaced_by for step in (await op_store.live()).steps}
    assert replaced_by == {
        "before": None,
        "first": "opposite",
        "opposite": "once-more",
        "once-more": None,
    }


async def test_in_a_crowd_the_opposite_of_what_was_there_before_is_replaced(op_store: OpStore) -> None:
    seen = taken(await ask_at_once(op_store, [an_operation("earlier")]), "earlier").view.change
    wanted = [
        an_operation("y", backend="y"),
        an_operation("z", backend="z"),
        an_operation("gone", Kind.REMOVE),
    ]
    await ask_at_once(op_store, wanted)
    changed, _ = await op_store.changed_since(seen, 100)
    assert {view.operation.id for view in changed} == {"y", "z", "gone", "earlier"}
    earlier = next(view for view in changed if view.operation.id == "earlier")
    assert [(step.replaced_by, step.version) for step in earlier.steps] == [("gone", 1)]


async def test_in_a_crowd_one_key_stands_for_one_wish(database: Database, op_store: OpStore) -> None:
    wanted = [
        an_operation("a", key="click", selection="all"),
        an_operation("b", key="click", selection="all"),
        an_operation("c", key="click", selection="some"),
        an_operation("d", backend="d"),
    ]
    answers = await ask_at_once(op_store, [an_operation("before", backend="x"), *wanted])
    assert taken(answers, "b").operation.id == "a"
    assert isinstance(answers["c"], Conflict)
    assert not taken(answers, "d").joined
    assert await row_count(database, operations) == 3


async def test_one_that_cannot_be_stored_spoils_nobody_elses(database: Database, op_store: OpStore) -> None:
    broken = replace(an_operation("broken", backend="x"), asked_by="\ud800")
    answers = await ask_at_once(op_store, [*different(20), broken])
    assert isinstance(answers.pop("broken"), Rejected)
    assert all(isinstance(answer, Submitted) for answer in answers.values())
    assert await row_count(database, operations) == 20


async def test_beyond_the_bound_callers_are_told_to_ask_again_and_then_are_taken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_WAITING_MAX", 30)
    store, wanted = SqlOpStore(database), different(100)
    answers = await ask_at_once(store, wanted)
    refused = [operation for operation in wanted if isinstance(answers[operation.id], Unavailable)]
    assert len(refused) == 70
    assert all(isinstance(answer, Submitted | Unavailable) for answer in answers.values())
    while refused:
        answers = await ask_at_once(store, refused)
        refused = [operation for operation in refused if isinstance(answers[operation.id], Unavailable)]
    assert await row_count(database, operations) == 100
