"""Which steps may start now: one operation at a time per backend and node, and no more nodes at once than
its roll-out allows. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Operation, OpId, Stage, State, Step

Key = tuple[OpId, NodeId]

_AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING})


def blocked(
    operations: Iterable[Operation],
    steps: Iterable[Step],
    away: Collection[NodeId],
    lost: Collection[Key] = (),
    unprovable: Collection[Key] = (),
) -> dict[Key, str]:
    """The pending steps whose turn it is not, and why. `steps` are all that belong to these operations.

    Nodes that are away hold nobody up, but for a canary: for that the others wait until it is `lost`. Nodes
    where nothing could start the new version (`unprovable`) go first only if all are so.
    """
    by_operation = defaultdict[OpId, list[Step]](list)
    for step in sorted(steps, key=lambda step: (step.key in unprovable, step.node)):
        by_operation[step.op].append(step)
    waits: dict[Key, str] = {}
    # Who goes first for a backend on a node: who is at work there, then who asked first. The two differ when
    # an earlier operation is tried again.
    ahead = {
        (step.node, name): op
        for op, mine in by_operation.items()
        for step in mine
        for name in step.goal.names
        if _midway(step)
    }
    for operation in sorted(operations, key=lambda op: (op.asked_at, op.id)):
        mine = by_operation[operation.id]
        behind = _behind_others(mine, ahead)
        waits |= _paced(operation, mine, behind, away, lost) | behind
        for step in mine:
            if not step.state.final:
                for name in step.goal.names:
                    ahead.setdefault((step.node, name), operation.id)
    return waits


def _behind_others(steps: Iterable[Step], ahead: Mapping[tuple[NodeId, str], OpId]) -> dict[Key, str]:
    waits: dict[Key, str] = {}
    for step in steps:
        if step.state is not State.PENDING:
            continue
        names = ((step.node, name) for name in step.goal.names)
        first = next((ahead[name] for name in names if ahead.get(name, step.op) != step.op), None)
        if first is not None:
            waits[step.key] = f"waiting for operation {first} on this node"
    return waits


def _midway(step: Step) -> bool:
    """At work, or between two stages: nobody else may come in between."""
    return step.state in _AT_WORK or (step.state is State.PENDING and step.stage is not Stage.APPLY)


def _paced(
    operation: Operation,
    steps: Sequence[Step],
    behind: Collection[Key],
    away: Collection[NodeId],
    lost: Collection[Key],
) -> dict[Key, str]:
    """Which of those that have not begun must wait. One that has begun goes on: no node is left half-way.
    Only a canary goes alone in any case, also among those that are tried again."""
    waiting = [step for step in steps if step.state is State.PENDING and step.stage is Stage.APPLY]
    again = [step for step in waiting if step.attempt]
    able = [step for step in waiting if step.node not in away and step.key not in behind]
    fresh = [step for step in able if not step.attempt]
    midway = [step for step in steps if _midway(step)]
    if operation.roll_out.canary and not any(
        step.state is State.SUCCEEDED and step.attempt for step in steps
    ):
        return _behind_canary(
            [step for step in midway if step.key not in lost],
            [step for step in again if step.key not in lost] + fresh,
            away,
        )
    busy = [step for step in [*midway, *again] if step.node not in away and step.key not in behind]
    room = max(operation.roll_out.at_once - len(busy), 0)
    return {step.key: "waiting for other nodes" for step in fresh[room:]}


def _behind_canary(
    midway: Sequence[Step], next_ones: Sequence[Step], away: Collection[NodeId]
) -> dict[Key, str]:
    """All of the next ones but the canary, if it is not midway already."""
    canary = next(iter([*midway, *next_ones]), None)
    why = "waiting for the first node to succeed"
    if canary is not None and canary.node in away:
        why = (
            f"{canary.node_name} has to succeed first and is offline; if it stays so, another node goes first"
        )
    return {step.key: why for step in next_ones if step is not canary}


def proven(step: Step) -> bool:
    """Its node has run the new version. One that found nothing to start it with says so as its reason."""
    return step.state is State.SUCCEEDED and step.stage is Stage.PROVE and not step.reason


def halted(operation: Operation, steps: Iterable[Step]) -> str:
    """Why a roll-out that proves itself goes no further; empty while it does."""
    failed = next((step for step in steps if step.state is State.FAILED), None)
    if failed is None or not operation.roll_out.proves:
        return ""
    return f"the roll-out stopped at {failed.node_name}: {failed.reason}"


def halt(step: Step, why: str) -> Step:
    """A step that had not begun when its roll-out stopped ends with it; it can be retried with the others."""
    if step.state is not State.PENDING or step.attempt:
        return step
    return replace(step, state=State.CANCELLED, reason=why, wait_until=None)
