"""How a new wish meets those that are not fulfilled yet: the newest wins over its opposite, and the same is
done once. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Kind, Operation, OpId, RollOut, Source, Stage, State, Step, Wish

RETRIED: Final = frozenset({State.FAILED, State.CANCELLED})  # Steps that ended so can be begun afresh.


def same_as(
    operation: Operation, nodes: Collection[NodeId], live: Iterable[tuple[Operation, Collection[NodeId]]]
) -> OpId | None:
    """An operation under way that wants just this, on the same nodes; a new one would add nothing."""
    for other, others_nodes in live:
        alike = _wanted(other) == _wanted(operation) and set(others_nodes) == set(nodes)
        if alike and other.wish is Wish.RUN:
            return other.id
    return None


def replaced(new: Iterable[Step], live: Iterable[Step]) -> list[Step]:
    """The live steps whose opposite is wanted now, marked so. They end before the new ones begin."""
    wanted = {(step.node, name): step for step in new for name in step.goal.names}
    gone: list[Step] = []
    for step in live:
        newer = next(filter(None, (wanted.get((step.node, name)) for name in step.goal.names)), None)
        if newer is not None and not step.state.final and _opposite(step.kind, newer.kind):
            gone.append(replace(step, replaced_by=newer.op))
    return gone


def opposites(kinds: Iterable[Kind]) -> frozenset[Kind]:
    """The kinds that want the opposite of one of these."""
    return frozenset(other for one in kinds for other in Kind if _opposite(one, other))


def wish_for(step: Step, operation: Operation) -> Wish:
    """What is wanted of a step: a newer operation that wants the opposite cancels it."""
    return Wish.CANCEL if step.replaced_by is not None else operation.wish


def retried(step: Step) -> Step:
    """Begun afresh, because a person asked: from the first stage, and without the time limit that it missed.
    Its attempts go on counting, so that late news of earlier ones stays late."""
    if step.state not in RETRIED:
        return step
    return replace(
        step,
        state=State.PENDING,
        stage=Stage.APPLY,
        failures=0,
        problem=None,
        reason="",
        expires=None,
        wait_until=None,
        replaced_by=None,
    )


def asked_again(step: Step) -> Step:
    """The same is wanted once more: earlier failures and waiting times count no longer, and neither does an
    opposite wish that came in between. What is at work goes on."""
    if step.state in RETRIED:
        return retried(step)
    if step.state.final:
        return step
    waits = None if step.state is State.PENDING else step.wait_until
    return replace(step, failures=0, wait_until=waits, replaced_by=None)


def woken(steps: Iterable[Step], new: Collection[Step]) -> list[Step]:
    """Of the steps of other operations from the same source: those that wait for their next attempt on a node
    where a new operation wants the same. The new step has to wait behind them, so they are tried now."""
    wanted = {step.node: step.kind for step in new}
    return [
        asked_again(step)
        for step in steps
        if step.state is State.PENDING
        and step.wait_until is not None
        and step.node in wanted
        and not _opposite(step.kind, wanted[step.node])
    ]


def _wanted(operation: Operation) -> tuple[Kind, Source, RollOut]:
    return operation.kind, operation.source, operation.roll_out


_UNDOES = frozenset({Kind.REMOVE, Kind.UNLOAD})


def _opposite(one: Kind, other: Kind) -> bool:
    return (one in _UNDOES) != (other in _UNDOES)
