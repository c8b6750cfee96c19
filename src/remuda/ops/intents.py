"""How a new request meets unfinished operations: it replaces its opposite and those for other bytes, and
joins the same one. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.failures import start_failed
from remuda.ops.model import Kind, Operation, OpId, ReplicaTarget, RollOut, Source, Stage, State, Step, Wish

RETRIED: Final = frozenset({State.FAILED, State.CANCELLED})  # Steps that ended so can be begun afresh.


def same_as(
    operation: Operation, steps: Iterable[Step], live: Sequence[tuple[Operation, Collection[Step]]]
) -> OpId | None:
    """An operation under way that wants just this, on the same nodes; a new one would add nothing. `live` are
    those from the same source, the oldest first. None is joined that is pinned to other bytes than this or
    than one that came after it: some of its nodes may be done, and would keep those. Nor is one whose
    finished nodes could not be done again as part of it.

    One for more nodes is not joined. Whoever asks for one node follows, cancels and retries that node's
    operation (in LocalAI's API, too, it has a key and a job of its own); the wider one may wait for others
    for days. The new step waits behind the wider one's on its node, and finds its work done."""
    steps = tuple(steps)
    wanted, pins = {step.node: step for step in steps}, _pins(steps)
    for other, its in reversed(live):
        if any(_differs(step, pins.get(step.node, "")) for step in its):
            return None
        alike = _wanted(other) == _wanted(operation) and {step.node for step in its} == set(wanted)
        if alike and any(_needs_its_own(step, wanted[step.node]) for step in its):
            return None
        if alike and other.wish is Wish.RUN:
            return other.id
        pins = _pins(its) | pins
    return None


def _pins(steps: Iterable[Step]) -> dict[NodeId, str]:
    return {step.node: step.goal.digest for step in steps if step.goal.digest}


def _differs(step: Step, pin: str) -> bool:
    """Whether a step leaves its node with other bytes than these. Without a pin of its own, it fetches what
    the reference stands for when it begins; what it has fetched already, nobody knows."""
    if pin in ("", step.goal.digest):
        return False
    return step.goal.digest != "" or step.state is State.SUCCEEDED


def _needs_its_own(done: Step, again: Step) -> bool:
    """Whether a node that is done has to be looked at by a new operation, for it may have been changed since.
    A roll-out would prove it once more, and a worker that has the name from elsewhere has to replace it. An
    upgrade that only the worker could tell from the one before is not repeated."""
    if done.state is not State.SUCCEEDED:
        return False
    told_apart = done.goal.digest != "" and done.rolls_back
    return (done.kind is Kind.UPGRADE and told_apart) or (again.goal.replaces and not done.goal.replaces)


def replaced(new: Iterable[Step], live: Iterable[Step]) -> list[Step]:
    """The live steps whose opposite is wanted now, marked so. They end before the new ones begin."""
    wanted = {(step.node, name): step for step in new for name in step.goal.names}
    gone: list[Step] = []
    for step in live:
        newer = next(filter(None, (wanted.get((step.node, name)) for name in step.goal.names)), None)
        if newer is not None and not step.state.final and _opposite(step.kind, newer.kind):
            gone.append(replace(step, replaced_by=newer.op))
    return gone


def outdated(new: Iterable[Step], live: Iterable[Step]) -> list[Step]:
    """The live steps from the same source that wait to do the same with other bytes, marked as replaced. What
    has begun goes on, so that no node is left half-way, and the new step follows it."""
    wanted = {step.node: step for step in new if not step.state.final}
    return [
        replace(step, replaced_by=newer.op)
        for step in live
        if (newer := wanted.get(step.node)) is not None
        and (step.kind, step.state, step.stage) == (newer.kind, State.PENDING, Stage.APPLY)
        and step.goal.digest
        and _differs(step, newer.goal.digest)
    ]


def opposites(kinds: Iterable[Kind]) -> frozenset[Kind]:
    """The kinds that want the opposite of one of these."""
    return frozenset(other for one in kinds for other in Kind if _opposite(one, other))


def wish_for(step: Step, operation: Operation) -> Wish:
    """What is wanted of a step: a newer operation that wants the opposite, or other bytes, cancels it."""
    return Wish.CANCEL if step.replaced_by is not None else operation.wish


def retried(step: Step) -> Step:
    """Begun afresh, because a person asked: from the first stage, and without the time limit that it missed.
    Its attempts go on counting, so that late news of earlier ones stays late. What did not start is started
    again, though its files are there."""
    return _afresh(step) if step.state in RETRIED else step


def _afresh(step: Step) -> Step:
    return replace(
        step,
        state=State.PENDING,
        stage=Stage.APPLY,
        failures=0,
        problem=step.problem if start_failed(step.problem) else None,
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


def wished_again(step: Step, again: Step) -> Step:
    """The same wish, for this node, joins the operation of the step. As `asked_again`; and a node that was
    done is looked at once more, for that may have been undone since. Where it was not, nothing is done."""
    if step.state is not State.SUCCEEDED:
        return asked_again(step)
    free = step.kind in (Kind.INSTALL, Kind.REMOVE) and (again.goal.replaces or not step.goal.replaces)
    return _afresh(step) if free else step


def woken(steps: Iterable[Step], new: Collection[Step]) -> list[Step]:
    """Of the steps of other operations from the same source: those that wait for their next attempt on a node
    where a new operation wants the same. The new step has to wait behind them, so they are tried now."""
    wanted = {step.node: step.kind for step in new}
    return [
        asked_again(step)
        for step in steps
        if step.state is State.PENDING
        and step.replaced_by is None
        and step.wait_until is not None
        and step.node in wanted
        and not _opposite(step.kind, wanted[step.node])
    ]


def _wanted(operation: Operation) -> tuple[Kind, Source, ReplicaTarget | None, RollOut]:
    return operation.kind, operation.source, operation.target, operation.roll_out


_UNDOES = frozenset({Kind.REMOVE, Kind.UNLOAD})


def _opposite(one: Kind, other: Kind) -> bool:
    return (one in _UNDOES) != (other in _UNDOES)
