"""What is true of a step's node now, from the fleet, the worker's report and the open request. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from remuda.core.errors import Problem
from remuda.fleet.health import NodeStatus, Reachability
from remuda.fleet.verdicts import ObservedNode, installed, why_no_commands
from remuda.gallery.references import same_source
from remuda.ops.model import Installation, Kind, Observation, Outcome, Step
from remuda.ops.ports import Request
from remuda.wire.nodes import InstalledArtifact

_ABOUT_TO_END: Final = timedelta(seconds=30)  # What a connection broke off in is often over soon after.


def sight(
    step: Step,
    node: ObservedNode | None,
    request: Request | None,
    blocked: str,
    now: datetime,
    ended_at: datetime | None = None,
) -> Observation:
    """`ended_at` is when something was last done on this node, whoever asked for it."""
    if node is None:
        return Observation(exists=False)
    if step.kind.of_model:
        return _sight_of_model(step, node, request, blocked, now)
    listed = installed(node, ended_at if request is None else _since(request, now))
    found = _found(step, listed, node.reports)
    return Observation(
        away=why_no_commands(node.standing),
        boot=node.boot,
        reports=node.reports,
        installed=None if found is None else bool(found),
        digest=found[0].digest if found else "",
        version=found[0].version if found else "",
        start_check=found[0].start_check if found else "",
        start_error=found[0].start_error if found else "",
        installation=None if node.reports or step.kind is not Kind.UPGRADE else _installation(found),
        working=_working(step, node, request, now),
        awaited=request is None or request.ended or request.awaited(now),
        lacking=found == [] and _listed_later(node, request, now),
        told=listed is not None or not node.reports,
        outcome=_outcome(step, request),
        blocked=blocked,
    )


def listed_before(step: Step, node: ObservedNode | None, ended_at: datetime | None) -> Installation | None:
    """What a worker without reports has before an upgrade is sent to it, if it was listed since anything was
    last done there; else None."""
    if node is None or node.reports or step.kind is not Kind.UPGRADE:
        return None
    return _installation(_found(step, installed(node, ended_at), reports=False))


def _installation(found: Sequence[InstalledArtifact] | None) -> Installation | None:
    return Installation(found[0].installed_at, found[0].digest) if found else None


def _sight_of_model(
    step: Step, node: ObservedNode, request: Request | None, blocked: str, now: datetime
) -> Observation:
    """A frontend carries it out, and holds its request open for as long as it is at it. A load is not waited
    for on a node that went away, or that knows nothing of it any more: another node may take the model."""
    away = why_no_commands(node.standing)
    outcome = _outcome(step, request)
    overdue = node.standing.reachability is Reachability.SILENT  # From which nothing is concluded.
    gone = f"{step.node_name} went away: {away}" if away and not overdue else ""
    if not away and step.boot not in (None, node.boot):
        gone = f"the worker on {step.node_name} was restarted"
    if gone and step.kind is Kind.LOAD and step.attempt and outcome is None:
        outcome = Outcome(step.attempt, Problem("node_unreachable", gone))
    return Observation(
        away="" if node.standing.status is NodeStatus.DRAINING and step.kind is Kind.UNLOAD else away,
        boot=node.boot,
        working=request is not None and request.awaited(now),
        outcome=outcome,
        blocked=blocked,
    )


def _listed_later(node: ObservedNode, request: Request | None, now: datetime) -> bool:
    """Whether its list is so much younger than the missed reply that what was about to be done is in it."""
    if request is None or request.ended or request.awaited(now) or node.inventory is None:
        return False
    return node.inventory.listed_at > request.open_until + _ABOUT_TO_END


def _since(request: Request, now: datetime) -> datetime:
    """From when on a list tells of this attempt: after a missed reply, from then on."""
    if request.ended or request.awaited(now):
        return request.begun_at
    return max(request.begun_at, request.open_until)


def _found(
    step: Step, listed: Sequence[InstalledArtifact] | None, reports: bool
) -> list[InstalledArtifact] | None:
    if listed is None:
        return None
    named = (one for name in step.goal.names for one in listed if name in (one.name, one.alias))
    return [one for one in named if step.kind is not Kind.INSTALL or _meant(step, one, reports)]


def _meant(step: Step, artifact: InstalledArtifact, reports: bool) -> bool:
    """A reference that is to be installed is not met by what its tag stood for before, nor by what came from
    another one under the same name: of the same bytes a worker then records the new reference, which is what
    later upgrades go by. LocalAI's workers cannot; there either the bytes or the reference have to be right.
    """
    if not step.source.uri:
        return True
    if step.goal.digest and artifact.digest:
        same_bytes = artifact.digest == step.goal.digest
        if reports and not same_bytes:
            return False
        if not reports and same_bytes:
            return True
    return not artifact.uri or same_source(artifact.uri, step.source.uri)


def _working(step: Step, node: ObservedNode, request: Request | None, now: datetime) -> bool:
    if node.reports:
        works = () if node.report is None else node.report.work
        return any((work.op_id, work.attempt) == (step.op, step.attempt) for work in works)
    on_time = step.answer_by is not None and now < step.answer_by
    return on_time and request is not None and request.awaited(now)


def _outcome(step: Step, request: Request | None) -> Outcome | None:
    if request is None or not request.ended or request.attempt != step.attempt:
        return None
    return Outcome(request.attempt, request.ending)
