"""How operations get along: a new request replaces its opposite and those for other bytes, and joins the
same one; and which steps may start now: one operation at a time per backend and node, and no more nodes at
once than its roll-out allows. Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.failures import start_failed
from remuda.ops.model import (
    FRONTENDS,
    Kind,
    Operation,
    OpId,
    ReplicaTarget,
    RollOut,
    Source,
    Stage,
    State,
    Step,
    StepKey,
    Wish,
)
from remuda.ops.reasons import StepCause, StepReason, because

RETRIED: Final = frozenset({State.FAILED, State.CANCELLED})  # Steps that ended so can be begun afresh.


def same_as(
    operation: Operation, steps: Iterable[Step], live: Sequence[tuple[Operation, Collection[Step]]]
) -> OpId | None:
    """An operation under way that wants just this, on the same nodes; a new one would add nothing. `live` are
    those from the same source, the oldest first. None is joined that is pinned to other bytes than this or
    than one that came after it: some of its nodes may be done, and would keep those. Nor is one whose
    finished nodes could not be done again as part of it.

    One for more nodes is not joined. A wish for one node follows, cancels and retries that node's
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
    the reference stands for when it begins; what it has fetched already is unknown."""
    if pin in ("", step.goal.digest):
        return False
    return step.goal.digest != "" or step.state is State.SUCCEEDED


def _needs_its_own(done: Step, again: Step) -> bool:
    """Whether a node that is done has to be looked at by a new operation, for it may have been changed since.
    A roll-out would prove it once more; what a worker is to replace by force, done or not, is more. An
    upgrade that only the worker could tell from the one before is not repeated."""
    if again.goal.replaces and not done.goal.replaces:
        return True
    told_apart = done.goal.digest != "" and done.rolls_back
    return done.state is State.SUCCEEDED and done.kind is Kind.UPGRADE and told_apart


def replaced(new: Iterable[Step], live: Iterable[Step]) -> list[Step]:
    """The live steps whose opposite is wanted now, marked so. They end before the new ones begin. A model
    that is installed again is wanted on every node, also on those that are still to remove it."""
    wanted = {(_where(step), name): step for step in new for name in step.goal.names}
    gone: list[Step] = []
    for step in live:
        newer = next(filter(None, (wanted.get((_where(step), name)) for name in step.goal.names)), None)
        if newer is not None and not step.state.final and _opposite(step.kind, newer.kind):
            gone.append(replace(step, replaced_by=newer.op))
    return gone


def _where(step: Step) -> NodeId:
    return FRONTENDS if step.kind.of_model else step.node


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
        why=None,
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
    again_is_free = step.kind in (Kind.INSTALL, Kind.REMOVE) or step.kind.of_model
    free = again_is_free and (again.goal.replaces or not step.goal.replaces)
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


_UNDOES = frozenset({Kind.REMOVE, Kind.UNLOAD, Kind.REMOVE_MODEL})


def _opposite(one: Kind, other: Kind) -> bool:
    return (one in _UNDOES) != (other in _UNDOES)


_AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING})


def blocked(
    operations: Iterable[Operation],
    steps: Iterable[Step],
    away: Collection[NodeId],
    lost: Collection[StepKey] = (),
    unprovable: Collection[StepKey] = (),
) -> dict[StepKey, StepReason]:
    """The pending steps whose turn it is not, and why. `steps` are all that belong to these operations.

    Nodes that are away hold up no others, except a canary: for that the others wait until it is `lost`. Nodes
    where nothing could start the new version (`unprovable`) go first only if all are so.
    """
    by_operation = defaultdict[OpId, list[Step]](list)
    for step in sorted(steps, key=lambda step: (step.key in unprovable, step.node)):
        by_operation[step.op].append(step)
    waits: dict[StepKey, StepReason] = {}
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
        waits |= _paced(operation, mine, behind, away, lost) | behind | _behind_frontends(mine)
        for step in mine:
            if not step.state.final:
                for name in step.goal.names:
                    ahead.setdefault((step.node, name), operation.id)
    return waits


def _behind_others(
    steps: Iterable[Step], ahead: Mapping[tuple[NodeId, str], OpId]
) -> dict[StepKey, StepReason]:
    waits: dict[StepKey, StepReason] = {}
    for step in steps:
        if step.state is not State.PENDING:
            continue
        names = ((step.node, name) for name in step.goal.names)
        first = next((ahead[name] for name in names if ahead.get(name, step.op) != step.op), None)
        if first is not None:
            here = step.node != FRONTENDS
            cause = StepCause.OTHER_OPERATION_HERE if here else StepCause.OTHER_OPERATION
            waits[step.key] = because(cause, first)
    return waits


def _behind_frontends(steps: Sequence[Step]) -> dict[StepKey, StepReason]:
    """A model is gone from the frontends before it goes from nodes: nothing brings it back there then."""
    if all(step.state.final for step in steps if step.node == FRONTENDS):
        return {}
    waiting = (step for step in steps if step.state is State.PENDING and step.node != FRONTENDS)
    return {step.key: because(StepCause.FRONTENDS_FIRST) for step in waiting}


def _midway(step: Step) -> bool:
    """At work, or between two stages: no other step may come in between."""
    return step.state in _AT_WORK or (step.state is State.PENDING and step.stage is not Stage.APPLY)


def _paced(
    operation: Operation,
    steps: Sequence[Step],
    behind: Collection[StepKey],
    away: Collection[NodeId],
    lost: Collection[StepKey],
) -> dict[StepKey, StepReason]:
    """Which of those that have not begun must wait. One that has begun goes on: no node is left half-way.
    Only a canary goes alone in any case, also among those that are tried again."""
    waiting = [step for step in steps if step.state is State.PENDING and step.stage is Stage.APPLY]
    again = [step for step in waiting if step.attempt]
    able = [step for step in waiting if step.node not in away and step.key not in behind]
    fresh = [step for step in able if not step.attempt]
    midway = [step for step in steps if _midway(step)]
    if operation.roll_out.canary and not any(_went_first(step) for step in steps):
        return _behind_canary(
            [step for step in midway if step.key not in lost],
            [step for step in again if step.key not in lost] + fresh,
            away,
        )
    busy = [step for step in [*midway, *again] if step.node not in away and step.key not in behind]
    room = max(operation.roll_out.at_once - len(busy), 0)
    return {step.key: because(StepCause.OTHER_NODES) for step in fresh[room:]}


def _went_first(step: Step) -> bool:
    """It has the new version, and has shown that it starts. One that had it already has shown nothing."""
    done = step.state is State.SUCCEEDED and step.attempt > 0
    return done and (step.stage is Stage.PROVE or not step.proves)


def _behind_canary(
    midway: Sequence[Step], next_ones: Sequence[Step], away: Collection[NodeId]
) -> dict[StepKey, StepReason]:
    """All of the next ones but the canary, if it is not midway already."""
    canary = next(iter([*midway, *next_ones]), None)
    why = because(StepCause.CANARY)
    if canary is not None and canary.node in away:
        why = because(StepCause.CANARY_AWAY, canary.node_name)
    return {step.key: why for step in next_ones if step is not canary}


def proven(step: Step) -> bool:
    """Its node has run the new version, and did not only find nothing to start it with."""
    started = step.why is None or not step.why.leaves_unproven
    return step.state is State.SUCCEEDED and step.stage is Stage.PROVE and started


def halted(operation: Operation, steps: Iterable[Step]) -> StepReason | None:
    """Why an operation goes no further; None while it does: a roll-out that proves itself after a failure,
    the removal of a model from nodes if it is not gone from the frontends."""
    if operation.kind is Kind.REMOVE_MODEL:
        own = next((step for step in steps if step.node == FRONTENDS), None)
        kept = own is not None and own.state.final and own.state is not State.SUCCEEDED
        return because(StepCause.MODEL_KEPT, own.reason) if own and kept else None
    failed = next((step for step in steps if step.state is State.FAILED), None)
    if failed is None or not operation.roll_out.proves:
        return None
    return because(StepCause.ROLL_OUT_STOPPED, failed.node_name, failed.reason)


def halt(step: Step, why: StepReason) -> Step:
    """A step that had not begun when its roll-out stopped ends with it; it can be retried with the others."""
    if step.state is not State.PENDING or step.attempt:
        return step
    return replace(step, state=State.CANCELLED, why=why, wait_until=None)
