"""Operations in the contract's shapes. Everything here is computed from what is stored, each time. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from remuda.core.ids import NodeId
from remuda.ops.model import Kind, Operation, State, Step, Wish
from remuda.ops.ports import Progress, View
from remuda.ops.steps import WAITS_TO_RETRY
from remuda.ops.summary import Status, Summary, summarise
from remuda.wire.broadcasts import GalleryStatus, NodeProgress
from remuda.wire.operations import JobView, OperationItem, PastItem
from remuda.wire.sizes import install_size

NodeStatus = Literal["queued", "downloading", "running_on_worker", "success", "error"]
COMPLETED: Final = "completed"
QUEUED: Final = "queued"
_WAITING: Final = frozenset({Status.QUEUED, Status.RETRYING})
UNKNOWN_JOB: Final = JobView(message="Operation queued", queued=True)


def node_status(step: Step, now: datetime) -> NodeStatus:
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
    """The reply did not come in time, or the node is away: it may be at work, and nobody hears it."""
    unheard = step.wait_until is None
    return unheard or (step.answer_by is not None and now >= step.answer_by)


def summary_of(view: View) -> Summary:
    shares = {node: progress.fraction for node, progress in _current(view).items()}
    return summarise(view.operation, view.steps, shares)


def operation_items(views: Iterable[View], now: datetime) -> tuple[OperationItem, ...]:
    """Those that are under way, and failed ones that nobody has put away; least far first."""
    shown = ((view, summary_of(view)) for view in views)
    items = [_item(view, summary, now) for view, summary in shown if listed(summary)]
    return tuple(sorted(items, key=lambda item: (item.progress, item.id, item.jobID)))


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
        taskType="deletion" if operation.kind is Kind.REMOVE else "Installation",
        isDeletion=operation.kind is Kind.REMOVE,
        isQueued=summary.status in _WAITING,
        cancellable=not summary.status.final,
        message=message(summary),
        nodeID=only_node(view),
        phase=QUEUED if summary.status in _WAITING else latest.phase,
        currentBytes=latest.current_bytes,
        totalBytes=latest.total_bytes,
        error=failures(view.steps),
        nodes=node_items(view, now),
    )


def node_items(view: View, now: datetime) -> tuple[NodeProgress, ...]:
    """One per node, by name; also for an operation on a single node."""
    heard = dict(view.progress)
    items = [_node_item(view, step, heard.get(step.node), now) for step in view.steps]
    return tuple(sorted(items, key=lambda item: (item.node_name, item.node_id)))


def _node_item(view: View, step: Step, heard: Progress | None, now: datetime) -> NodeProgress:
    done = step.state is State.SUCCEEDED
    at_work = step.state in (State.RUNNING, State.STOPPING)
    tick = (
        heard if heard is not None and at_work and heard.attempt == step.attempt else Progress(step.attempt)
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
        case State.SKIPPED | State.CANCELLED if not step.reason.startswith(step.state.value):
            return f"{step.state.value}: {step.reason}"
        case State.PENDING if step.problem is not None:
            left = retry_in(step, now)
            why = step.reason or "waiting" if left is None else f"retrying in {left.total_seconds():.0f} s"
            return f"{why}; last: {step.problem.message}"
        case State.SUCCEEDED:
            return ""
        case _:
            return step.reason


def retry_in(step: Step, now: datetime) -> timedelta | None:
    """How long until the next attempt of a step that waits for nothing else."""
    if step.state is not State.PENDING or step.wait_until is None or step.reason != WAITS_TO_RETRY:
        return None
    return max(step.wait_until - now, timedelta())


def failures(steps: Sequence[Step]) -> str:
    """Why it failed, node by node. Waiting and working nodes are no failures."""
    failed = sorted((step for step in steps if step.state is State.FAILED), key=lambda step: step.node_name)
    return "; ".join(f"{step.node_name}: {step.reason}" for step in failed)


def element(operation: Operation) -> str:
    """What the operation is about, in the contract's word its key."""
    source = operation.source
    return source.backend or source.name or source.uri


def only_node(view: View) -> str:
    """The node of an operation that was asked for on this one alone."""
    alone = len(view.steps) == 1 and view.operation.selection.startswith("node ")
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
        deletion=operation.kind is Kind.REMOVE,
        error=ending(view.steps, summary) if final else "",
        completed=succeeded,
    )


def raw_status(view: View, now: datetime) -> GalleryStatus:
    """The same in the form that frontends send each other."""
    operation, summary, latest = view.operation, summary_of(view), _latest(view)
    return GalleryStatus(
        deletion=operation.kind is Kind.REMOVE,
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
        taskType="deletion" if operation.kind is Kind.REMOVE else "installation",
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
