"""Whose turn it is: one operation at a time per backend and node, and the pace of each roll-out. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Operation, OpId, State, Step

Key = tuple[OpId, NodeId]

_AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING})


def blocked(
    operations: Iterable[Operation], steps: Iterable[Step], away: Collection[NodeId]
) -> dict[Key, str]:
    """The pending steps whose turn it is not, and why. `steps` are all that belong to these operations.

    Nodes that are away hold nobody up.
    """
    by_operation = defaultdict[OpId, list[Step]](list)
    for step in sorted(steps, key=lambda step: step.node):
        by_operation[step.op].append(step)
    waits: dict[Key, str] = {}
    # Who goes first for a backend on a node: who is at work there, then who asked first. The two differ when
    # an earlier operation is tried again.
    ahead = {
        (step.node, name): op
        for op, mine in by_operation.items()
        for step in mine
        for name in step.goal.names
        if step.state in _AT_WORK
    }
    for operation in sorted(operations, key=lambda op: (op.asked_at, op.id)):
        mine = by_operation[operation.id]
        waits |= _behind_others(mine, ahead)
        waits |= _paced(operation, [step for step in mine if step.key not in waits], away)
        for step in mine:
            if not step.state.final:
                ahead = {(step.node, name): operation.id for name in step.goal.names} | ahead
    return waits


def _behind_others(steps: Iterable[Step], ahead: Mapping[tuple[NodeId, str], OpId]) -> dict[Key, str]:
    waits: dict[Key, str] = {}
    for step in steps:
        names = ((step.node, name) for name in step.goal.names)
        first = next((ahead[name] for name in names if ahead.get(name, step.op) != step.op), None)
        if step.state is State.PENDING and first is not None:
            waits[step.key] = f"operation {first} goes first on this node"
    return waits


def _paced(operation: Operation, steps: Sequence[Step], away: Collection[NodeId]) -> dict[Key, str]:
    """Which of those that have not begun must wait. One that has begun goes on: no node is left half-way."""
    roll_out = operation.roll_out
    canary = roll_out.canary and not any(step.state is State.SUCCEEDED and step.attempt for step in steps)
    pending = [step for step in steps if step.state is State.PENDING]
    begun = [step for step in steps if step.state in _AT_WORK] + [step for step in pending if step.attempt]
    busy = [step for step in begun if canary or step.node not in away]
    fresh = [step for step in pending if not step.attempt and step.node not in away]
    room = (1 if canary else roll_out.at_once) - len(busy)
    why = "one node has to succeed before the others begin" if canary else "other nodes go first"
    return {step.key: why for step in fresh[max(room, 0) :]}


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
