"""Operations and steps with defaults, and the usual moves of a reconciler."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from remuda.core.errors import Problem
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.ops.model import Goal, Kind, Operation, OpId, RollOut, Source, State, Step
from remuda.ops.ports import OpStore
from remuda.ops.reasons import StepCause, because

ONE, TWO = FrontendId("frontend-1"), FrontendId("frontend-2")
OPEN_FOR = timedelta(seconds=30)
TROUBLE = Problem("no_such_image", "there is no such image", hint="check the name", retryable=True)
BOOT = BootId("boot-1")
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def an_operation(
    op: str = "op-1",
    kind: Kind = Kind.INSTALL,
    *,
    backend: str = "llama-cpp",
    key: str = "",
    selection: str = "",
) -> Operation:
    source = Source(backend, galleries='[{"name":"main"}]')
    return Operation(
        OpId(op), kind, source, RollOut(16), "ada", LONG_AGO, idempotency_key=key, selection=selection
    )


def its_steps(operation: Operation, *nodes: str) -> list[Step]:
    return [
        Step(
            operation.id,
            NodeId(node),
            f"name-of-{node}",
            operation.kind,
            operation.source,
            Goal((f"cpu-{operation.source.backend}", operation.source.backend), "sha256:" + "a" * 64),
            target=operation.target,
        )
        for node in nodes
    ]


async def submitted(
    store: OpStore, operation: Operation | None = None, nodes: Sequence[str] = ("node-1",)
) -> OpId:
    operation = operation or an_operation()
    return (await store.submit(operation, its_steps(operation, *nodes))).operation.id


def begun(step: Step) -> Step:
    return replace(
        step,
        state=State.RUNNING,
        attempt=step.attempt + 1,
        boot=BOOT,
        answer_by=LONG_AGO,
        wait_until=LONG_AGO,
    )


def ended(step: Step, state: State, problem: Problem | None = None) -> Step:
    failures = step.failures + (problem is not None)
    return replace(
        step,
        state=state,
        boot=None,
        problem=problem,
        failures=failures,
        why=because(StepCause.NOTE, "so it ended"),
    )


async def the_steps(store: OpStore, op: str = "op-1") -> Sequence[Step]:
    return (await store.view(OpId(op))).steps


async def begin(store: OpStore, op: str = "op-1") -> Sequence[Step]:
    """All its steps that wait begin."""
    waiting = [step for step in await the_steps(store, op) if step.state is State.PENDING]
    return list(await store.commit([begun(step) for step in waiting], ONE, OPEN_FOR))


async def end(
    store: OpStore, op: str = "op-1", state: State = State.SUCCEEDED, problem: Problem | None = None
) -> Sequence[Step]:
    """All its steps that are not over end."""
    open_ones = [step for step in await the_steps(store, op) if not step.state.final]
    return list(await store.commit([ended(step, state, problem) for step in open_ones], ONE, OPEN_FOR))
