"""One reconciler pass over all unfinished operations: what is true of each step's node now (from the fleet,
the worker's report and the open request), what to write, what to send after that, which workers to ask.
Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from remuda.core import limits
from remuda.core.errors import Problem
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import NodeStatus, Reachability
from remuda.fleet.verdicts import (
    ObservedNode,
    installed,
    is_up,
    may_take_work,
    why_no_commands,
    why_no_removal,
)
from remuda.gallery.references import same_source
from remuda.ops import concurrency
from remuda.ops.concurrency import wish_for
from remuda.ops.model import (
    FRONTENDS,
    AttemptKey,
    Dispatch,
    Installation,
    Kind,
    Moment,
    Observation,
    OpId,
    Outcome,
    Stage,
    State,
    Step,
    StepKey,
)
from remuda.ops.ports import Live, OpenRequest
from remuda.ops.reasons import StepCause, StepReason, because
from remuda.ops.steps import LOST, StepChange, advance
from remuda.wire.nodes import InstalledArtifact

_ABOUT_TO_END: Final = timedelta(seconds=30)  # What a connection broke off in is often over soon after.
COPYING_OWNERS_MAX: Final = 100  # Frontends that may go while they have files copied for one load.
OWNER_GONE: Final = replace(LOST, message="the frontend that worked on this has gone; another continues")


def observe(
    step: Step,
    node: ObservedNode | None,
    request: OpenRequest | None,
    blocked: StepReason | None,
    now: datetime,
    ended_at: datetime | None = None,
    *,
    runs_in: BootId | None = None,
) -> Observation:
    """`ended_at` is when something was last done on this node, for whatever operation. `runs_in`, of a load:
    the worker's life in which its process runs; None: none runs yet."""
    if step.node == FRONTENDS:
        return _sight_of_frontends(step, request, blocked, now)
    if node is None:
        return Observation(exists=False)
    if step.kind.of_replica:
        return _sight_of_replica(step, node, request, blocked, now, runs_in)
    if step.kind.of_model:
        return _sight_of_files(step, node, request, blocked, now)
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


def _sight_of_frontends(
    step: Step, request: OpenRequest | None, blocked: StepReason | None, now: datetime
) -> Observation:
    """A frontend that no longer holds its request open is gone: another takes over, at once."""
    working = request is not None and request.awaited(now)
    outcome = _outcome(step, request)
    if step.attempt and outcome is None and not working:
        outcome = Outcome(step.attempt, OWNER_GONE)
    return Observation(working=working, outcome=outcome, blocked=blocked)


def _held_elsewhere(step: Step, frontend: str) -> StepReason | None:
    """Which frontend is waited for, because it alone has the bytes; None: this one can begin."""
    spec = step.source.model
    if spec is None or spec.held_by in ("", frontend):
        return None
    return because(StepCause.FILES_ELSEWHERE, spec.held_on or spec.held_by)


def _sight_of_files(
    step: Step, node: ObservedNode, request: OpenRequest | None, blocked: StepReason | None, now: datetime
) -> Observation:
    """Which of a model's files a node has is not looked at: it is asked to remove them, and answers."""
    return Observation(
        away=_why_waits(step, node),
        boot=node.boot,
        reports=node.reports,
        working=request is not None and request.awaited(now),
        awaited=request is None or request.ended or request.awaited(now),
        outcome=_outcome(step, request),
        blocked=blocked,
    )


def _why_waits(step: Step, node: ObservedNode) -> str:
    """Why its node cannot be asked for this now; empty: it can."""
    return (why_no_removal if step.kind is Kind.REMOVE_MODEL else why_no_commands)(node.standing)


def _sight_of_replica(
    step: Step,
    node: ObservedNode,
    request: OpenRequest | None,
    blocked: StepReason | None,
    now: datetime,
    runs_in: BootId | None,
) -> Observation:
    """A frontend carries it out, and holds its request open for as long as it is at it."""
    away = why_no_commands(node.standing)
    outcome = _outcome(step, request)
    working = request is not None and request.awaited(now)
    gone = _why_given_up(step, node, away, runs_in)
    if gone and step.kind is Kind.LOAD and step.attempt and outcome is None:
        outcome = Outcome(step.attempt, Problem("node_unreachable", gone))
    return Observation(
        away="" if node.standing.status is NodeStatus.DRAINING and step.kind is Kind.UNLOAD else away,
        boot=node.boot,
        working=working,
        outcome=outcome,
        blocked=blocked,
    )


def _why_given_up(step: Step, node: ObservedNode, away: str, runs_in: BootId | None) -> str:
    """Why a load is not waited for, so that another node may take the model; empty: it is. Its node went
    away, or its process ended with its worker. While files are copied nothing runs on the node, and what has
    arrived stays: for a worker that was killed its loader waits, until the node counts as offline.
    """
    if away:
        overdue = node.standing.reachability is Reachability.SILENT  # From which nothing is concluded.
        return "" if overdue and may_take_work(node.standing.node) else f"{step.node_name} went away: {away}"
    restarted = step.boot not in (None, node.boot) and runs_in not in (None, node.boot)
    return f"the worker on {step.node_name} was restarted" if restarted else ""


def _listed_later(node: ObservedNode, request: OpenRequest | None, now: datetime) -> bool:
    """Whether its list is so much younger than the missed reply that what was about to be done is in it."""
    if request is None or request.ended or request.awaited(now) or node.inventory is None:
        return False
    return node.inventory.listed_at > request.open_until + _ABOUT_TO_END


def _since(request: OpenRequest, now: datetime) -> datetime:
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


def _working(step: Step, node: ObservedNode, request: OpenRequest | None, now: datetime) -> bool:
    if node.reports:
        works = () if node.report is None else node.report.work
        return any((work.op_id, work.attempt) == (step.op, step.attempt) for work in works)
    on_time = step.answer_by is not None and now < step.answer_by
    return on_time and request is not None and request.awaited(now)


def _outcome(step: Step, request: OpenRequest | None) -> Outcome | None:
    if request is None or not request.ended or request.attempt != step.attempt:
        return None
    return Outcome(request.attempt, request.ending)


_AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING})
_CANARY_AWAY: Final = timedelta(seconds=limits.CANARY_AWAY_S)
_FULL: Final = because(StepCause.NODES_BUSY)
_FULL_HERE: Final = because(StepCause.FRONTENDS_BUSY)


@dataclass(frozen=True, slots=True)
class Room:
    """How many attempts may be begun in this pass, and why not more."""

    left: int
    why: StepReason = _FULL
    own: int = 1  # Of what this frontend does for itself.
    frontend: str = ""  # Which one that is.


@dataclass(frozen=True, slots=True)
class PassPlan:
    changes: tuple[tuple[Step, Step], ...] = ()  # Before and after; only those worth writing.
    dispatches: Mapping[StepKey, Dispatch] = field(default_factory=dict)  # Each after its step is written.
    list_from: frozenset[tuple[NodeId, BootId]] = frozenset()  # Only their list can tell now.
    list_anew: frozenset[tuple[NodeId, BootId]] = frozenset()  # Their list has just become another.
    wake_at: datetime | None = None  # The soonest time at which waiting alone changes something.


def plan(
    live: Live,
    nodes: Mapping[NodeId, ObservedNode],
    moment_for: Callable[[Step], Moment],
    room: Room,
    heard_of: Collection[AttemptKey] = (),
) -> PassPlan:
    """Those at work first: one that fails stops its roll-out before the next begins. `heard_of` are attempts
    whose workers have lately told how far they are."""
    moves = _Moves(live, nodes, moment_for, room, heard_of)
    unfinished = [step for step in live.steps if not step.state.final]
    for step in unfinished:
        if step.state in _AT_WORK:
            moves.advance(step)
    stopped = moves.halted_operations()
    for step in unfinished:
        if step.state is State.PENDING:
            why = stopped.get(step.op)
            halted = step if why is None else concurrency.halt(step, why)
            if halted is step:
                moves.advance(step)
            else:
                moves.take(step, (halted, None))
    return moves.plan()


class _Moves:
    """The pass so far."""

    def __init__(
        self,
        live: Live,
        nodes: Mapping[NodeId, ObservedNode],
        moment_for: Callable[[Step], Moment],
        room: Room,
        heard_of: Collection[AttemptKey],
    ) -> None:
        self._live = live
        self._heard_of = heard_of
        self._nodes = nodes
        self._moment_for = moment_for
        self._room = room
        self._operations = {operation.id: operation for operation in live.operations}
        self._requests = {(one.op, one.node, one.attempt): one for one in live.requests}
        away = {node for node, view in nodes.items() if why_no_commands(view.standing)}
        lost = {step.key for step in live.steps if _lost(step, nodes.get(step.node))}
        unprovable = {step.key for step in live.steps if _unprovable(step, nodes.get(step.node))}
        self._blocked = concurrency.blocked(live.operations, live.steps, away, lost, unprovable)
        self._proven = {step.op for step in live.steps if concurrency.proven(step)}
        self._after = {step.key: step for step in live.steps}
        self._dispatches: dict[StepKey, Dispatch] = {}
        self._begun = {False: 0, True: 0}  # On nodes, and by frontends for themselves.

    def advance(self, step: Step) -> None:
        change = self._advanced(step, self._blocked.get(step.key) or self._in_hand(step))
        if change[1] is not None and change[0].attempt > step.attempt and (full := self._no_room(step)):
            change = self._advanced(step, full)
        self.take(step, change)

    def _no_room(self, step: Step) -> StepReason | None:
        """Why it cannot begin in this pass; None: it does, and counts from now on. What frontends do for
        themselves takes no place of nodes, and needs no bus."""
        own = step.node == FRONTENDS
        if own and (elsewhere := _held_elsewhere(step, self._room.frontend)):
            return elsewhere
        if self._begun[own] >= (self._room.own if own else self._room.left):
            return _FULL_HERE if own else self._room.why
        self._begun[own] += 1
        return None

    def take(self, step: Step, change: StepChange) -> None:
        self._after[step.key], dispatch = change
        if dispatch is not None:
            self._dispatches[step.key] = dispatch

    def halted_operations(self) -> dict[OpId, StepReason]:
        steps = defaultdict[OpId, list[Step]](list)
        for step in self._after.values():
            steps[step.op].append(step)
        return {
            operation.id: why
            for operation in self._live.operations
            if (why := concurrency.halted(operation, steps[operation.id]))
        }

    def plan(self) -> PassPlan:
        changes = tuple(
            (step, after)
            for step in self._live.steps
            if _worth_writing(step, after := self._after[step.key]) or step.key in self._dispatches
        )
        return PassPlan(changes, self._dispatches, self._list_from(), self._list_anew(), self._wake_at())

    def _advanced(self, step: Step, blocked: StepReason | None) -> StepChange:
        request = self._requests.get((step.op, step.node, step.attempt))
        view = self._view(step, request)
        live, runs_in = self._live, self._live.loads.get(step.key, step.boot)
        seen = observe(step, view, request, blocked, live.now, live.ended_at.get(step.node), runs_in=runs_in)
        if step.state is State.PENDING:
            before = listed_before(step, self._nodes.get(step.node), self._live.ended_at.get(step.node))
            seen = replace(seen, installation=before)
        operation = self._operations[step.op]
        if step.proves:
            optional = not operation.roll_out.proves
            seen = replace(seen, proven_elsewhere=step.op in self._proven, proof_optional=optional)
        if (step.op, step.node, step.attempt) in self._heard_of and not seen.reports:
            seen = replace(seen, working=True)  # Its reply may have been missed: it is at it all the same.
        return advance(step, seen, wish_for(step, operation), self._moment(step))

    def _moment(self, step: Step) -> Moment:
        """A frontend that dies while files are copied has done no harm: the next goes on where they are."""
        moment = self._moment_for(step)
        if self._live.loads.get(step.key, step.boot) is not None or step.kind is not Kind.LOAD:
            return moment
        return replace(moment, policy=replace(moment.policy, owners_max=COPYING_OWNERS_MAX))

    def _in_hand(self, step: Step) -> StepReason | None:
        """A request that was long under way may arrive after its operation is over: what it is about to do
        on the node is not seen there yet."""
        view = self._nodes.get(step.node)
        works = () if view is None or view.report is None else view.report.work
        others = (one for one in works if one.op_id not in ("", step.op) and one.backend in step.goal.names)
        first = next(others, None)
        return None if first is None else because(StepCause.WORKER_BUSY, first.op_id)

    def _view(self, step: Step, request: OpenRequest | None) -> ObservedNode | None:
        """A list that was asked for before an attempt began may be older than what others did there since:
        it says nothing about a step that is not at work, but that an upgrade is not needed: by its digest."""
        view = self._nodes.get(step.node)
        unneeded = step.kind is Kind.UPGRADE and not step.attempt
        if view is None or view.inventory is None or request is not None or unneeded:
            return view
        return replace(view, inventory=None)

    def _list_from(self) -> frozenset[tuple[NodeId, BootId]]:
        return self._silent(
            step.node
            for step in self._after.values()
            if step.state in _AT_WORK
            and (
                step.kind is Kind.INSTALL  # Ended by what is there, also while its request is open.
                or (step.answer_by is not None and step.answer_by <= self._live.now)
                or self._reply_missed(step)
            )
        )

    def _reply_missed(self, step: Step) -> bool:
        """No frontend waits for it any more, or the one that does may have missed it."""
        request = self._requests.get((step.op, step.node, step.attempt))
        return request is not None and not request.awaited(self._live.now)

    def _list_anew(self) -> frozenset[tuple[NodeId, BootId]]:
        return self._silent(
            step.node
            for step in self._live.steps
            if step.state in _AT_WORK and self._after[step.key].state not in _AT_WORK
        )

    def _silent(self, nodes: Iterable[NodeId]) -> frozenset[tuple[NodeId, BootId]]:
        """Those of them that could answer, and tell nothing unless they are asked."""
        return frozenset(
            (node, view.boot)
            for node in nodes
            if (view := self._nodes.get(node)) is not None
            and not view.reports
            and not why_no_commands(view.standing)
        )

    def _wake_at(self) -> datetime | None:
        instants = (
            instant
            for step in self._after.values()
            if not step.state.final
            for instant in (step.wait_until, step.answer_by, step.expires)
            if instant is not None and instant > self._live.now
        )
        return min(instants, default=None)


def attempts_at_work(steps: Iterable[Step]) -> frozenset[AttemptKey]:
    """Those whose reply is of use. What a frontend does itself is over as soon as it is unwanted."""
    return frozenset(
        (step.op, step.node, step.attempt)
        for step in steps
        if step.state in _AT_WORK and not (step.by_frontend and step.state is State.STOPPING)
    )


def telling(steps: Iterable[Step]) -> bool:
    """Whether progress of an attempt may arrive, whichever frontend has sent it."""
    return any(
        step.state in _AT_WORK
        and step.kind in (Kind.INSTALL, Kind.UPGRADE, Kind.LOAD, Kind.INSTALL_MODEL)
        and step.stage is not Stage.ROLL_BACK
        for step in steps
    )


def to_hold(
    live: Live, nodes: Mapping[NodeId, ObservedNode], awaited: Collection[AttemptKey], open_for: timedelta
) -> list[AttemptKey]:
    """The requests whose reply we wait for that are soon no longer known to be open. Each is a write, so not
    before half is used up."""
    return [
        key
        for one in live.requests
        if (key := (one.op, one.node, one.attempt)) in awaited
        and not one.ended
        and (one.node in nodes or one.node == FRONTENDS)
        and one.open_until - live.now < open_for / 2
    ]


def unwanted(live: Live, nodes: Mapping[NodeId, ObservedNode]) -> frozenset[AttemptKey]:
    """What workers report to have in hand though its step is over, or waits. `live` must be the younger of
    the two, or what has just begun would look unwanted.

    A newer attempt of the same step is left alone with the older one: one word would end both.
    """
    working = {step.key for step in live.steps if step.state in _AT_WORK}
    return frozenset(
        (OpId(work.op_id), node, work.attempt)
        for node, view in nodes.items()
        if view.report is not None and not why_no_commands(view.standing)
        for work in view.report.work
        if work.op_id and (OpId(work.op_id), node) not in working
    )


def _lost(step: Step, view: ObservedNode | None) -> bool:
    """Whether others that wait for this step wait no longer: its node has been away for long, or is kept from
    beginning by an admin, who may never change that."""
    if view is None or not _why_waits(step, view):
        return False
    kept = is_up(view.standing) and step.state is State.PENDING
    return kept or view.standing.silence >= _CANARY_AWAY


def _unprovable(step: Step, view: ObservedNode | None) -> bool:
    """Its worker says that it has nothing to start such a backend with."""
    if not step.proves or view is None or view.report is None:
        return False
    return any(one.unprovable for one in view.report.installed if one.name in step.goal.names)


def _worth_writing(before: Step, after: Step) -> bool:
    if after is before or after == before:  # Most are the very same, and comparing them takes its time.
        return False
    if after.why is not None and after.why.is_news_after(before.why):
        return True
    return after != replace(before, why=after.why) or (after.why is None and before.why is not None)
