"""Operations in our own JSON: every field a person may ask about. Pure."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from remuda.core.errors import Problem
from remuda.core.ids import NodeId
from remuda.ops.live_progress import LiveProgress
from remuda.ops.model import Attempt, State, Step
from remuda.ops.overlay import NOTHING_LIVE, Overlay
from remuda.ops.ports import Progress, View
from remuda.ops.summary import Status
from remuda.ops.wire_view import failures, node_status, percentage, retry_in, summary_of
from remuda.wire.operations import AttemptView, OpView, ProblemView, ProgressView, RollOutView, StepView

_AT_WORK = (State.RUNNING, State.STOPPING)


def op_view(view: View) -> OpView:
    """Without its steps."""
    operation, summary = view.operation, summary_of(view)
    source, target, roll_out = operation.source, operation.target, operation.roll_out
    return OpView(
        id=operation.id,
        kind=operation.kind,
        status=summary.status,
        wish=operation.wish,
        backend=source.backend,
        uri=source.uri,
        name=source.name if target is None or target.reason is None else str(target.reason),
        alias=source.alias,
        model="" if target is None else target.key.model,
        replica=0 if target is None else target.key.index,
        selection=operation.selection,
        roll_out=RollOutView(at_once=roll_out.at_once, canary=roll_out.canary, proves=roll_out.proves),
        percentage=percentage(summary),
        counts={state.value: count for state, count in sorted(summary.counts.items())},
        message=summary.message,
        error=failures(view.steps) if summary.status is Status.FAILED else "",
        asked_by=operation.asked_by,
        asked_at=operation.asked_at,
        finished_at=operation.finished_at,
        expires_at=operation.expires,
        idempotency_key=operation.idempotency_key,
        dismissed=operation.dismissed,
        cleared=operation.cleared,
        change=view.change,
    )


def with_steps(
    view: View, now: datetime, overlay: Overlay = NOTHING_LIVE, only: Collection[NodeId] | None = None
) -> OpView:
    """With all its steps and their attempts; or, `only` these, as one part of a stream."""
    attempts = defaultdict[NodeId, list[Attempt]](list)
    for attempt in view.attempts:
        attempts[attempt.node].append(attempt)
    heard = dict(view.progress)
    steps = tuple(
        step_view(step, now, _told(step, heard.get(step.node), overlay), attempts[step.node])
        for step in sorted(view.steps, key=lambda step: (step.node_name, step.node))
        if only is None or step.node in only
    )
    return op_view(view).model_copy(update={"steps": steps, "whole": only is None})


def step_view(
    step: Step, now: datetime, progress: ProgressView | None = None, attempts: Sequence[Attempt] = ()
) -> StepView:
    left = retry_in(step, now)
    return StepView(
        node_id=step.node,
        node_name=step.node_name,
        state=step.state,
        wire_status=node_status(step, now),
        stage=step.stage,
        attempt=step.attempt,
        failures=step.failures,
        names=step.goal.names,
        version=step.goal.version,
        digest=step.goal.digest,
        pinned=bool(step.goal.digest) and not step.goal.tag_decides,
        reason=step.reason,
        problem=_problem(step.problem),
        not_before=step.wait_until if step.state is State.PENDING else None,
        retry_in_s=None if left is None else round(left.total_seconds(), 1),
        replaced_by=step.replaced_by or "",
        progress=progress,
        attempts=tuple(_attempt(attempt) for attempt in attempts),
    )


def live_view(live: LiveProgress) -> ProgressView:
    return ProgressView(
        percentage=round(100 * (live.fraction or 0.0), 2),
        phase=live.phase,
        file_name=live.file_name,
        current_bytes=live.current_bytes,
        total_bytes=live.total_bytes,
        rate_bytes_s=round(live.rate_bytes_s or 0.0),
        left_s=None if live.left is None else round(live.left.total_seconds(), 1),
    )


def _told(step: Step, stored: Progress | None, overlay: Overlay) -> ProgressView | None:
    """What is heard at this moment, else what was written down last; of this attempt only."""
    if step.state not in _AT_WORK:
        return None
    live = overlay.of(step.op, step.node)
    if live is not None and live.attempt == step.attempt and not live.ended:
        return live_view(live)
    if stored is None or stored.attempt != step.attempt:
        return None
    return ProgressView(
        percentage=round(100 * stored.fraction, 2),
        phase=stored.phase,
        file_name=stored.file_name,
        current_bytes=stored.current_bytes,
        total_bytes=stored.total_bytes,
    )


def _attempt(attempt: Attempt) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        stage=attempt.stage,
        begun_at=attempt.begun_at,
        ended_at=attempt.ended_at,
        problem=_problem(attempt.problem),
    )


def _problem(problem: Problem | None) -> ProblemView | None:
    if problem is None:
        return None
    return ProblemView(
        code=problem.code, message=problem.message, hint=problem.hint, retryable=problem.retryable
    )
