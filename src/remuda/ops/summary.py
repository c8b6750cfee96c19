"""The state of a whole operation, computed from its steps each time. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from remuda.core.ids import NodeId
from remuda.ops.model import Operation, State, Step, Wish

_AWAY_NAMED_MAX: Final = 3  # Of those that went away while they were at it.
_RETRYING_NAMED_MAX: Final = 3


class Status(StrEnum):
    QUEUED = "queued"  # Nothing has begun.
    RUNNING = "running"
    RETRYING = "retrying"  # Nothing is at work, and some nodes wait for their next attempt.
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # Over, and at least one node failed.
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Summary:
    status: Status
    fraction: float  # 0..1, over all nodes; 1 exactly when all are final.
    counts: Mapping[State, int]
    message: str


def summarise(operation: Operation, steps: Sequence[Step], progress: Mapping[NodeId, float]) -> Summary:
    """`progress` holds 0..1 for nodes at work, where it is known."""
    counts = Counter(step.state for step in steps)
    retrying = [step for step in steps if _waits_to_retry(step)]
    status = _status(operation, counts, retrying=bool(retrying))
    done = sum(_share(step, progress.get(step.node, 0.0)) for step in steps)
    fraction = done / len(steps) if steps else 1.0
    return Summary(status, fraction, counts, _message(steps, counts, retrying))


def _waits_to_retry(step: Step) -> bool:
    return step.state is State.PENDING and step.problem is not None and step.wait_until is not None


def _status(operation: Operation, counts: Counter[State], *, retrying: bool) -> Status:
    if any(counts[state] for state in State if not state.final):
        match operation.wish:
            case Wish.CANCEL:
                return Status.CANCELLING
            case Wish.PAUSE if not counts[State.RUNNING] + counts[State.STOPPING]:
                return Status.PAUSED
        if retrying and not counts[State.RUNNING] + counts[State.STOPPING]:
            return Status.RETRYING
        begun = counts.total() > counts[State.PENDING] + counts[State.SKIPPED]
        return Status.RUNNING if begun else Status.QUEUED
    if counts[State.FAILED]:
        return Status.FAILED
    return Status.CANCELLED if counts[State.CANCELLED] else Status.SUCCEEDED


def _share(step: Step, progress: float) -> float:
    if step.state.final:
        return 1.0
    at_work = step.state in (State.RUNNING, State.STOPPING)
    return min(max(progress, 0.0), 0.99) if at_work else 0.0  # Whole only when it is known to be over.


def _message(steps: Sequence[Step], counts: Counter[State], retrying: Sequence[Step]) -> str:
    done, total = counts[State.SUCCEEDED], len(steps)
    parts = [f"{done} of {total} node{'s' if total != 1 else ''} done"]
    for state in (State.RUNNING, State.STOPPING, State.PENDING, State.FAILED, State.SKIPPED, State.CANCELLED):
        if counts[state]:
            parts.append(f"{counts[state]} {_WORDS[state]}")
    if retrying:
        parts.append(f"{len(retrying)} to be retried")
    by_name = sorted(steps, key=lambda step: step.node_name)
    failed = [step for step in by_name if step.state is State.FAILED]
    away = [step for step in by_name if step.state is State.RUNNING and not step.wait_until and step.reason]
    told = [f"{step.node_name}: {step.reason}" for step in [*failed, *away[:_AWAY_NAMED_MAX]]]
    told += [
        f"{step.node_name}: {step.problem.message}" for step in retrying[:_RETRYING_NAMED_MAX] if step.problem
    ]
    return ", ".join(parts) + (f". {'; '.join(told)}" if told else "")


_WORDS = {
    State.RUNNING: "at work",
    State.STOPPING: "stopping",
    State.PENDING: "waiting",
    State.FAILED: "failed",
    State.SKIPPED: "skipped",
    State.CANCELLED: "cancelled",
}
