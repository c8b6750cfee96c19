"""Operations as JSON: in the contract's shapes, and in our own, with every field a person may ask about.
Computed from what is stored, each time. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from remuda.core.errors import Problem
from remuda.core.ids import NodeId
from remuda.ops.concurrency import RETRIED
from remuda.ops.model import FRONTENDS_NAME, Attempt, Kind, Operation, State, Step, Wish
from remuda.ops.ports import Progress, View
from remuda.ops.progress import (
    NOTHING_LIVE,
    QUIET_S,
    LiveProgress,
    Overlay,
    Status,
    Summary,
    named,
    summarise,
)
from remuda.ops.reasons import StepCause
from remuda.ops.selection import names_one_node
from remuda.wire.broadcasts import GalleryStatus, NodeProgress, StagingStatus
from remuda.wire.files import FilePhase
from remuda.wire.operations import (
    AttemptView,
    JobView,
    OperationItem,
    OpView,
    PastItem,
    ProblemView,
    ProgressView,
    RollOutView,
    StepView,
)
from remuda.wire.sizes import install_size

ContractStatus = Literal["queued", "downloading", "running_on_worker", "success", "error"]
COMPLETED: Final = "completed"
QUEUED: Final = "queued"
_WAITING: Final = frozenset({Status.QUEUED, Status.RETRYING})
UNKNOWN_JOB: Final = JobView(message="Operation queued", queued=True)


def node_status(step: Step, now: datetime) -> ContractStatus:
    """The contract's word for a step. It has none for skipped and cancelled ones: the message says so."""
    match step.state:
        case State.PENDING:
            return "queued"
        case State.RUNNING if not _overdue(step, now):
            return "downloading"
        case State.RUNNING | State.STOPPING:
            return "running_on_worker"
        case State.SUCCEEDED:
            return "success"
        case State.FAILED | State.SKIPPED | State.CANCELLED:
            return "error"


def _overdue(step: Step, now: datetime) -> bool:
    """The reply did not come in time, or the node is away: it may be at work, unheard."""
    unheard = step.wait_until is None
    return unheard or (step.answer_by is not None and now >= step.answer_by)


def summary_of(view: View) -> Summary:
    attempts = {step.node: step.attempt for step in view.steps}
    shares = {node: one.fraction for node, one in view.progress if attempts.get(node) == one.attempt}
    return summarise(view.operation, view.steps, shares)


def operation_items(views: Iterable[View], now: datetime) -> tuple[OperationItem, ...]:
    """Those that are under way, and failed ones that were not dismissed; least far first."""
    shown = ((view, summary_of(view)) for view in views)
    items = [_item(view, summary, now) for view, summary in shown if listed(summary)]
    return tuple(sorted(items, key=item_order))


def item_order(item: OperationItem) -> tuple[int, str, str]:
    return item.progress, item.id, item.jobID


def staging_items(
    loads: Iterable[View], elsewhere: Iterable[StagingStatus] = ()
) -> tuple[OperationItem, ...]:
    """Of loads, those whose model's files are on their way to a node; of several of one model the one that is
    least far, since the contract's ids are of models. `elsewhere`: as other frontends on the bus tell it, for
    models of which no load is known here."""
    found = ((view.steps[0], dict(view.progress).get(view.steps[0].node)) for view in loads if view.steps)
    items = [
        _staging_item(step, progress)
        for step, progress in found
        if progress is not None
        and step.state is State.RUNNING
        and progress.attempt == step.attempt
        and progress.phase in set(FilePhase)
    ]
    told = {item.id: item for item in map(_told_item, elsewhere)}
    least = told | {item.id: item for item in sorted(items, key=lambda item: -item.progress)}
    return tuple(sorted(least.values(), key=item_order))


def _staging_item(step: Step, progress: Progress) -> OperationItem:
    model = "" if step.target is None else step.target.key.model
    done, total = progress.current_bytes, progress.total_bytes
    return OperationItem(
        id=f"staging:{model}",
        fullName=model,
        name=model,
        jobID=f"staging:{model}",
        progress=int(100 * done / total) if total and progress.phase == FilePhase.STAGING else 0,
        taskType="staging",
        isBackend=False,
        message=progress.file_name,
        nodeID=step.node,
        nodeName=step.node_name,
        phase=progress.phase,
        currentBytes=done,
        totalBytes=total,
    )


def _told_item(status: StagingStatus) -> OperationItem:
    model = status.model_id
    return OperationItem(
        id=f"staging:{model}",
        fullName=model,
        name=model,
        jobID=f"staging:{model}",
        progress=int(min(max(status.progress, 0.0), 100.0)),
        taskType="staging",
        isBackend=False,
        message=status.message,
        nodeName=status.node_name,
        phase="staging",
        currentBytes=status.bytes_sent,
        totalBytes=status.total_bytes,
    )


def listed(summary: Summary) -> bool:
    return not summary.status.final or summary.status is Status.FAILED


def _item(view: View, summary: Summary, now: datetime) -> OperationItem:
    operation, latest = view.operation, _latest(view)
    return OperationItem(
        id=element(operation),
        fullName=element(operation),
        name=element(operation).rpartition("@")[2],
        jobID=operation.id,
        progress=int(percentage(summary)),
        taskType="deletion" if operation.kind.removes else "Installation",
        isDeletion=operation.kind.removes,
        isBackend=not operation.kind.of_model,
        isQueued=summary.status in _WAITING,
        cancellable=not summary.status.final,
        message=message(summary),
        nodeID=only_node(view),
        phase=QUEUED if summary.status in _WAITING else latest.phase,
        currentBytes=latest.current_bytes or None,
        totalBytes=latest.total_bytes or None,
        error=failures(view.steps),
        nodes=node_items(view, now),
    )


def node_items(view: View, now: datetime) -> tuple[NodeProgress, ...]:
    """One per node, by name; also for an operation on a single node."""
    progress = dict(view.progress)
    items = [_node_item(view, step, progress.get(step.node), now) for step in view.steps]
    return tuple(sorted(items, key=lambda item: (item.node_name, item.node_id)))


def _node_item(view: View, step: Step, progress: Progress | None, now: datetime) -> NodeProgress:
    done = step.state is State.SUCCEEDED
    at_work = step.state in (State.RUNNING, State.STOPPING)
    tick = (
        progress
        if progress is not None and at_work and progress.attempt == step.attempt
        else Progress(step.attempt)
    )
    paused = view.operation.wish is Wish.PAUSE and step.state is State.PENDING
    return NodeProgress(
        node_id=step.node,
        node_name=step.node_name,
        status="error" if paused else node_status(step, now),
        file_name=tick.file_name,
        current=install_size(tick.current_bytes) if tick.current_bytes else "",
        total=install_size(tick.total_bytes) if tick.total_bytes else "",
        percentage=100.0 if done else round(100 * tick.fraction, 2),
        phase=tick.phase,
        error="paused" if paused else said(step, now),
    )


def said(step: Step, now: datetime) -> str:
    """What there is to say about a step, beyond its status."""
    match step.state:
        case State.SKIPPED | State.CANCELLED if step.why is None or not step.why.says_cancelled:
            return f"{step.state.value}: {step.reason}"
        case State.PENDING if step.problem is not None:
            left = retry_in(step, now)
            asked = step.why is not None and step.why.cause is StepCause.SERVER_WAIT
            retrying = f"retrying in {(left or timedelta()).total_seconds():.0f} s"
            why = step.reason or "waiting" if left is None or asked else retrying
            return f"{why}; last: {step.problem.message}"
        case State.SUCCEEDED:
            return ""
        case _:
            return step.reason


def retry_in(step: Step, now: datetime) -> timedelta | None:
    """How long until the next attempt of a step that waits for nothing else."""
    retries = step.why is not None and step.why.cause in (StepCause.RETRY, StepCause.SERVER_WAIT)
    if step.state is not State.PENDING or step.wait_until is None or not retries:
        return None
    return max(step.wait_until - now, timedelta())


def failures(steps: Sequence[Step]) -> str:
    """Why it failed, node by node. Waiting and working nodes are no failures."""
    failed = sorted((step for step in steps if step.state is State.FAILED), key=lambda step: step.node_name)
    return "; ".join(named(step, step.reason) for step in failed)


def grouped_failures(steps: Sequence[Step]) -> str:
    """The same with each reason once: `a, b: why; c: another`."""
    names = defaultdict[str, list[str]](list)
    for step in sorted(steps, key=lambda step: step.node_name):
        if step.state is State.FAILED:
            names[step.reason].append(step.node_name)
    own = FRONTENDS_NAME
    return "; ".join(
        reason if nodes == [own] else f"{', '.join(nodes)}: {reason}" for reason, nodes in names.items()
    )


def element(operation: Operation) -> str:
    """What the operation is about, in the contract's word its key."""
    source = operation.source
    return source.backend or source.name or source.uri


def only_node(view: View) -> str:
    """The node of an operation that was asked for on this one alone."""
    alone = len(view.steps) == 1 and names_one_node(view.operation.selection)
    return view.steps[0].node if alone else ""


def percentage(summary: Summary) -> float:
    return round(100 * summary.fraction, 2)


def message(summary: Summary) -> str:
    match summary.status:
        case Status.SUCCEEDED:
            return COMPLETED
        case Status.QUEUED:
            return QUEUED
        case _:
            return summary.message


def job(view: View) -> JobView:
    operation, summary = view.operation, summary_of(view)
    final, succeeded = summary.status.final, summary.status is Status.SUCCEEDED
    return JobView(
        progress=100.0 if succeeded else percentage(summary),
        message=message(summary),
        galleryElementName=element(operation),
        processed=final,
        deletion=operation.kind.removes,
        error=ending(view.steps, summary) if final else "",
        completed=succeeded,
    )


def raw_status(view: View, now: datetime) -> GalleryStatus:
    """The same in the form that frontends send each other."""
    operation, summary, latest = view.operation, summary_of(view), _latest(view)
    return GalleryStatus(
        deletion=operation.kind.removes,
        file_name=latest.file_name,
        error=ending(view.steps, summary) if summary.status is Status.FAILED else "",
        processed=summary.status.final,
        message=message(summary),
        progress=percentage(summary),
        phase=QUEUED if summary.status in _WAITING else latest.phase,
        file_size=install_size(latest.total_bytes) if latest.total_bytes else "",
        downloaded_size=install_size(latest.current_bytes) if latest.current_bytes else "",
        gallery_element_name=element(operation),
        cancelled=summary.status is Status.CANCELLED,
        cancellable=not summary.status.final,
        nodes=node_items(view, now),
        current_bytes=latest.current_bytes,
        total_bytes=latest.total_bytes,
    )


def ending(steps: Sequence[Step], summary: Summary) -> str:
    match summary.status:
        case Status.FAILED:
            return failures(steps)
        case Status.CANCELLED:
            return "cancelled"
        case _:
            return ""


def past_item(view: View) -> PastItem:
    """Of an operation that is over."""
    operation, summary = view.operation, summary_of(view)
    assert operation.finished_at is not None, "it is over"
    return PastItem(
        id=element(operation),
        name=element(operation).rpartition("@")[2],
        jobID=operation.id,
        nodeID=only_node(view),
        isBackend=not operation.kind.of_model,
        taskType="deletion" if operation.kind.removes else "installation",
        outcome=_OUTCOMES.get(summary.status, "completed"),
        error=failures(view.steps),
        startedAt=operation.asked_at,
        finishedAt=operation.finished_at,
    )


_OUTCOMES: Final[Mapping[Status, Literal["completed", "failed", "cancelled"]]] = {
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


def _latest(view: View) -> Progress:
    """What was heard last of any node at work: all that a view with a single bar can show."""
    return max(_current(view).values(), key=lambda one: one.at or _LONG_AGO, default=Progress(0))


_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def _current(view: View) -> dict[NodeId, Progress]:
    """What is known of attempts that are at work now: of earlier ones nothing counts any more."""
    attempts = {step.node: step.attempt for step in view.steps if not step.state.final}
    return {node: progress for node, progress in view.progress if attempts.get(node) == progress.attempt}


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
        name="" if operation.kind.of_model else _said_name(operation),
        alias=source.alias,
        model=operation.model,
        replica=0 if target is None else target.key.index,
        selection=operation.selection,
        roll_out=RollOutView(at_once=roll_out.at_once, canary=roll_out.canary, proves=roll_out.proves),
        percentage=percentage(summary),
        counts={state.value: count for state, count in sorted(summary.counts.items())},
        message=summary.message,
        error=grouped_failures(view.steps) if summary.status is Status.FAILED else "",
        asked_by=operation.asked_by,
        asked_at=operation.asked_at,
        finished_at=operation.finished_at,
        expires_at=operation.expires,
        idempotency_key=operation.idempotency_key,
        dismissed=operation.dismissed,
        cleared=operation.cleared,
        retryable=_retryable(operation, summary),
        change=view.change,
    )


def _retryable(operation: Operation, summary: Summary) -> bool:
    """A load's node was chosen by what was true then."""
    if operation.kind is Kind.LOAD:
        return False
    return summary.status is Status.RETRYING or any(summary.counts.get(state) for state in RETRIED)


def _said_name(operation: Operation) -> str:
    target = operation.target
    return operation.source.name if target is None or target.reason is None else str(target.reason)


def with_steps(
    view: View, now: datetime, overlay: Overlay = NOTHING_LIVE, only: Collection[NodeId] | None = None
) -> OpView:
    """With all its steps and their attempts; or, `only` these, as one part of a stream."""
    attempts = defaultdict[NodeId, list[Attempt]](list)
    for attempt in view.attempts:
        attempts[attempt.node].append(attempt)
    progress = dict(view.progress)
    steps = tuple(
        step_view(step, now, _told(step, progress.get(step.node), overlay, now), attempts[step.node])
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
        file_number=live.file_number,
        file_count=live.file_count,
        file_bytes=live.file_bytes,
        file_size=live.file_size,
        rate_bytes_s=round(live.rate_bytes_s or 0.0),
        left_s=None if live.left is None else round(live.left.total_seconds(), 1),
        age_s=live.age_s,
    )


def _told(step: Step, stored: Progress | None, overlay: Overlay, now: datetime) -> ProgressView | None:
    """What is heard at this moment, else what was written down last; of this attempt only."""
    if step.state not in _AT_WORK:
        return None
    live = overlay.of(step.op, step.node)
    if live is not None and live.attempt == step.attempt and (live.seq or not live.ended):
        return live_view(live)
    if stored is None or stored.attempt != step.attempt:
        return None
    return ProgressView(
        percentage=round(100 * stored.fraction, 2),
        phase=stored.phase,
        file_name=stored.file_name,
        current_bytes=stored.current_bytes,
        total_bytes=stored.total_bytes,
        file_number=stored.file_number,
        file_count=stored.file_count,
        file_bytes=stored.file_bytes,
        file_size=stored.file_size,
        age_s=_age_s(stored, now),
    )


def _age_s(stored: Progress, now: datetime) -> float | None:
    age_s = 0.0 if stored.at is None else (now - stored.at).total_seconds()
    return round(age_s) if age_s > QUIET_S else None


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
