"""How far operations are: one attempt, from its progress events, laid over what is stored; and a whole
operation, from its steps. Pure: time is an argument, and everything is computed anew each time.

Within an attempt the fraction never falls, and once the attempt has ended nothing changes any more.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from remuda.core.ids import NodeId
from remuda.ops.model import FRONTENDS, Operation, OpId, State, Step, Wish
from remuda.ops.ports import Progress, View
from remuda.ops.reasons import StepCause
from remuda.wire.backends import InstallPhase, InstallProgress
from remuda.wire.files import FilePhase
from remuda.wire.sizes import parse_size

_WINDOW_S: Final = 10.0
_MEASURED_S_MIN: Final = 1.0
_SAMPLES_MAX: Final = 40
_LEFT_S_MAX: Final = 1e8
QUIET_S: Final = 5.0  # What was heard longer ago is shown with its age, and without a rate.
_AGE_STEP_S: Final = 5
_LAYER: Final = re.compile(r"Downloading (\d{1,6})/\d{1,6} ")
# LocalAI's workers tell the bytes of a pull and those of unpacking, not how the two add up.
_PULL_SHARE: Final = 0.5
_FILE_PHASES: Final[Collection[str]] = frozenset(FilePhase)  # The first part of a load, in any order.


@dataclass(frozen=True, slots=True)
class LiveProgress:
    attempt: int
    seq: int = 0
    phase: str = ""
    file_name: str = ""
    current_bytes: int = 0  # Of the phase.
    total_bytes: int = 0  # 0: not known.
    file_number: int = 0  # Of several that come one after another.
    file_count: int = 0
    file_bytes: int = 0  # Of this file alone.
    file_size: int = 0
    fraction: float | None = None  # 0..1, of the whole attempt; None: unknown.
    rate_bytes_s: float | None = None  # Measured; None until it is.
    left: timedelta | None = None  # Of the phase, where its bytes are exact.
    age_s: int | None = None  # How long nothing was heard, once that is noticeable.
    ended: bool = False
    layer: int = 0  # Where the worker counts each layer from zero: which one,
    layer_bytes: int = 0  # how much of it,
    earlier_bytes: int = 0  # and what was seen of those before it.
    samples: tuple[tuple[float, int], ...] = ()

    def stored(self, at: datetime) -> Progress:
        """What is kept for frontends that join later."""
        return Progress(
            self.attempt,
            self.fraction or 0.0,
            self.phase,
            self.file_name,
            self.current_bytes,
            self.total_bytes,
            at,
            self.file_number,
            self.file_count,
            self.file_bytes,
            self.file_size,
            self.left,
        )


def fold(live: LiveProgress, event: InstallProgress, at_s: float) -> LiveProgress:
    """The state after this event; `at_s` is of a clock that never goes back."""
    if live.ended or (live.seq and not event.seq) or _is_late(live, event):
        return live
    updated = _exact(live, event) if event.seq else _pieced_together(live, event)
    return _measured(live, updated, at_s)


def _is_late(live: LiveProgress, event: InstallProgress) -> bool:
    """Several requests report a load, one after another, each of which counts for itself."""
    before, now = live.phase in _FILE_PHASES, event.phase in _FILE_PHASES
    if now != before and live.seq:
        return now
    if now and event.phase == FilePhase.STAGING != live.phase:  # A worker's clock may be behind ours.
        return False
    return bool(event.seq) and event.seq <= live.seq


def aged(live: LiveProgress, now_s: float) -> LiveProgress:
    """The same after a silence: nothing moves, as far as is known. Progress without an event has no age."""
    if live.ended or not live.samples:
        return live
    silent_s = now_s - live.samples[-1][0]
    age_s = int(silent_s) // _AGE_STEP_S * _AGE_STEP_S if silent_s > QUIET_S else None
    return live if age_s == live.age_s else replace(live, age_s=age_s, rate_bytes_s=None, left=None)


def end(live: LiveProgress) -> LiveProgress:
    return replace(live, ended=True, rate_bytes_s=None, left=None)


def entered(live: LiveProgress, phase: str) -> LiveProgress:
    """The beginning of a phase of which only the name is known."""
    return replace(
        live,
        phase=phase,
        file_name="",
        current_bytes=0,
        total_bytes=0,
        rate_bytes_s=None,
        left=None,
        age_s=None,
        samples=(),
    )


def worth_keeping(kept: LiveProgress | None, live: LiveProgress) -> bool:
    """Whether a reader of what is stored would see a difference: each costs a write."""
    if kept is None or (kept.attempt, kept.phase) != (live.attempt, live.phase):
        return True
    if live.fraction is None:
        return live.current_bytes != kept.current_bytes
    return live.fraction - (kept.fraction or 0.0) >= 0.01


def _exact(live: LiveProgress, event: InstallProgress) -> LiveProgress:
    return replace(
        live,
        seq=event.seq,
        phase=event.phase,
        file_name=event.file_name,
        current_bytes=event.current_bytes,
        total_bytes=event.total_bytes,
        file_number=event.file_number,
        file_count=event.file_count,
        file_bytes=event.file_bytes,
        file_size=event.file_size,
        fraction=_risen(live, event.overall / 100),
    )


def _pieced_together(live: LiveProgress, event: InstallProgress) -> LiveProgress:
    """Of a worker that calls everything `downloading` and begins again at zero with each layer."""
    current, total = parse_size(event.current) or 0, parse_size(event.total) or 0
    if event.file_name.startswith("Extracting "):
        share = _PULL_SHARE + (1 - _PULL_SHARE) * current / total if total else None
        updated = replace(live, phase=InstallPhase.EXTRACTING, layer=0, layer_bytes=0, earlier_bytes=0)
    else:
        updated = replace(_layered(live, event.file_name, current), phase=event.phase)
        # Events are lost at the end of a layer, so this is at most what was fetched, never more.
        current = updated.earlier_bytes + current
        share = _PULL_SHARE * min(current / total, 1.0) if total else None
    return replace(
        updated,
        file_name=event.file_name,
        current_bytes=min(current, total) if total else current,
        total_bytes=total,
        fraction=live.fraction if share is None else _risen(live, share),
    )


def _layered(live: LiveProgress, file_name: str, current: int) -> LiveProgress:
    found = _LAYER.match(file_name)
    layer = int(found[1]) if found else 0
    if layer == live.layer:
        return replace(live, layer_bytes=current)
    onward = layer > live.layer > 0
    earlier = live.earlier_bytes + live.layer_bytes if onward else 0
    return replace(live, layer=layer, layer_bytes=current, earlier_bytes=earlier)


def _risen(live: LiveProgress, fraction: float) -> float:
    return max(live.fraction or 0.0, min(max(fraction, 0.0), 1.0))


def _measured(before: LiveProgress, updated: LiveProgress, at_s: float) -> LiveProgress:
    begun_anew = updated.phase != before.phase or updated.current_bytes < before.current_bytes
    earlier = () if begun_anew else before.samples
    recent = tuple(sample for sample in earlier if sample[0] >= at_s - _WINDOW_S)[-_SAMPLES_MAX:]
    samples = (*recent, (at_s, updated.current_bytes))
    span_s, moved = at_s - samples[0][0], updated.current_bytes - samples[0][1]
    # The first sample says where it was resumed; only what follows was measured.
    rate = moved / span_s if span_s >= _MEASURED_S_MIN and moved > 0 else None
    return replace(updated, samples=samples, rate_bytes_s=rate, left=_left(updated, rate), age_s=None)


def _left(updated: LiveProgress, rate: float | None) -> timedelta | None:
    if rate is None or not updated.seq or not updated.total_bytes:
        return None
    remaining = max(updated.total_bytes - updated.current_bytes, 0)
    return timedelta(seconds=min(remaining / rate, _LEFT_S_MAX))


class Overlay(Protocol):
    def of(self, op: OpId, node: NodeId) -> LiveProgress | None: ...


class _NothingLive:
    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return None


NOTHING_LIVE: Final[Overlay] = _NothingLive()


def overlaid(view: View, overlay: Overlay, now: datetime) -> View:
    """Only attempts at work are touched, and none falls behind what was shown before."""
    stored: Mapping[NodeId, Progress] = dict(view.progress)
    ticks = {
        step.node: _ahead(stored.get(step.node), live.stored(now))
        for step in view.steps
        if step.state is State.RUNNING
        and (live := overlay.of(step.op, step.node)) is not None
        and live.attempt == step.attempt
        and not live.ended
    }
    return replace(view, progress=tuple({**stored, **ticks}.items())) if ticks else view


def _ahead(stored: Progress | None, live: Progress) -> Progress:
    if stored is None or stored.attempt != live.attempt or stored.fraction <= live.fraction:
        return live
    return replace(live, fraction=stored.fraction)


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
    fraction: float  # 0..1, over all nodes; 1 exactly when all are done or skipped.
    counts: Mapping[State, int]
    message: str


def summarise(operation: Operation, steps: Sequence[Step], progress: Mapping[NodeId, float]) -> Summary:
    """`progress` holds 0..1 for each node's last attempt, where it is known."""
    counts = Counter(step.state for step in steps)
    stops = operation.wish is Wish.CANCEL  # Then nothing is tried again.
    retrying = [] if stops else [step for step in steps if _waits_to_retry(step)]
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
    if step.state in (State.SUCCEEDED, State.SKIPPED):
        return 1.0
    if step.state is State.PENDING and step.kind.of_replica:  # What a load brought is not kept.
        return 0.0
    return min(max(progress, 0.0), 0.99)  # What waits, failed or was cancelled is as far as it came.


def _message(steps: Sequence[Step], counts: Counter[State], retrying: Sequence[Step]) -> str:
    nodes = Counter(step.state for step in steps if step.node != FRONTENDS)
    done, total = nodes[State.SUCCEEDED], nodes.total()
    parts = [f"{done} of {total} node{'s' if total != 1 else ''} done"] if total else []
    if not total and counts[State.SUCCEEDED]:
        parts.append("done")
    for state in (State.RUNNING, State.STOPPING, State.PENDING, State.FAILED, State.SKIPPED, State.CANCELLED):
        if counts[state]:
            parts.append(f"{counts[state]} {_WORDS[state]}" if total else _WORDS[state])
    if retrying:
        parts.append(f"{len(retrying)} to be retried" if total else "to be retried")
    by_name = sorted(steps, key=lambda step: step.node_name)
    failed = [step for step in by_name if step.state is State.FAILED]
    away = [step for step in by_name if step.state is State.RUNNING and not step.wait_until and step.why]
    reasons = [named(step, step.reason) for step in [*failed, *away[:_AWAY_NAMED_MAX]]]
    reasons += [named(step, _last_problem(step)) for step in retrying[:_RETRYING_NAMED_MAX]]
    return ", ".join(parts) + (f". {'; '.join(reasons)}" if reasons else "")


def _last_problem(step: Step) -> str:
    said = "" if step.problem is None else step.problem.message
    waits = step.why is not None and step.why.cause is StepCause.SERVER_WAIT
    return f"{said}; {step.reason}" if waits else said


def named(step: Step, why: str) -> str:
    return why if step.node == FRONTENDS else f"{step.node_name}: {why}"


_WORDS = {
    State.RUNNING: "at work",
    State.STOPPING: "stopping",
    State.PENDING: "waiting",
    State.FAILED: "failed",
    State.SKIPPED: "skipped",
    State.CANCELLED: "cancelled",
}
