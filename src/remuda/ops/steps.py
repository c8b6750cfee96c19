"""The state machine of a step: the only function that changes one. It decides from what is true now, not
from what just happened."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from remuda.core.errors import UNREACHABLE_SINCE, Problem
from remuda.core.retry import Backoff
from remuda.ops.failures import LIKELY_PERMANENT, answered, did_not_start, start_failed
from remuda.ops.model import (
    Dispatch,
    DoneWithNote,
    Ending,
    Kind,
    Moment,
    NotNeeded,
    Observation,
    Stage,
    State,
    Step,
    StepPolicy,
    Verb,
    Wish,
)
from remuda.ops.reasons import Remainder, StepCause, StepReason, because
from remuda.wire.nodes import StartCheck
from remuda.wire.sizes import install_size

StepChange = tuple[Step, Dispatch | None]

_APPLY = {
    Kind.INSTALL: Verb.INSTALL,
    Kind.UPGRADE: Verb.UPGRADE,
    Kind.REMOVE: Verb.REMOVE,
    Kind.LOAD: Verb.LOAD,
    Kind.UNLOAD: Verb.UNLOAD,
    Kind.INSTALL_MODEL: Verb.INSTALL_MODEL,
    Kind.REMOVE_MODEL: Verb.REMOVE_MODEL,
}
_JITTER = 0.25
_TAKE_OVER = timedelta(milliseconds=100)
_SOON = timedelta(seconds=2)  # After a restart, once: what is interrupted again may be what ends the worker.
_DIGEST_CHARS = 19  # Its algorithm, and enough to tell it from others.

NOT_PROVEN = "not_proven"  # Not a fault: there was nothing to start it with.

LOST = Problem("attempt_lost", "the worker is no longer working on this", retryable=True)
PROOF_FAILED = "proof_failed"  # The version's fault, as the worker said; no other code is.
RESTARTED = replace(LOST, message="the worker was restarted while working on this")
EXPIRED = Problem("expired", "it expired before it began", hint="retry it without an expiry")
UNKNOWN = Problem(
    "outcome_unknown",
    "the worker never reported the outcome; it may have done it",
    hint="look at what is installed there, then retry or dismiss",
)


def already_done(step: Step, seen: Observation) -> Step | None:
    """How a step would end that has not begun, if its node has what is wanted already; else None."""
    if step.state is not State.PENDING or step.attempt or not (how := _goal_met(step, seen)):
        return None
    return _succeeded(step, how)


def advance(step: Step, seen: Observation, wish: Wish, at: Moment) -> StepChange:
    """The step's next state, and at most one thing to send. The same observation again changes nothing."""
    if step.state.final:
        return step, None
    if not seen.exists:
        return _close(step, State.CANCELLED, because(StepCause.NODE_REMOVED)), None
    if step.state is State.PENDING:
        return _pending(step, seen, wish, at)
    ended = _ended(step, seen, at)
    if ended is not None:
        return _unless_unwanted(ended, wish), None
    if step.state is State.RUNNING and step.stage is Stage.APPLY and wish is not Wish.RUN:
        return _begin_stopping(step, seen, wish, at)
    return _keep_waiting(step, seen, wish, at)


# Not begun.


def _pending(step: Step, seen: Observation, wish: Wish, at: Moment) -> StepChange:
    if wish is Wish.CANCEL and step.stage is Stage.APPLY:
        cause = StepCause.CANCELLED_BETWEEN if step.attempt else StepCause.CANCELLED_UNBEGUN
        return _close(step, State.CANCELLED, because(cause)), None
    # While others go first on this node, what it has now is not what it will have.
    listed = step.stage is Stage.APPLY and not seen.blocked and not _contradicted(step)
    if listed and (how := _goal_met(step, seen)):
        return _succeeded(step, how), None
    if step.stage is Stage.APPLY and _expired(step, seen, at.now):
        return _failed_with(step, EXPIRED), None
    why = _why_not_yet(step, seen, wish, at.now)
    if why is not None and wish is Wish.CANCEL:
        return _stopped(step, wish), None
    return _begin(step, seen, at) if why is None else (_with_reason(step, why), None)


def _with_reason(step: Step, why: StepReason | None) -> Step:
    """At most looks nothing has changed: the very same step then, which costs nothing to compare."""
    return step if why == step.why else replace(step, why=why)


def _expired(step: Step, seen: Observation, now: datetime) -> bool:
    """A load whose frontend died is taken over after its time, but not waited for."""
    begun = step.kind is Kind.LOAD and step.attempt and not seen.away
    return step.expires is not None and now >= step.expires and not begun


def _contradicted(step: Step) -> bool:
    """Whether the worker answered the last attempt with a failure. Its list does not overrule that: files may
    be in place although their process does not start. The answer to a later attempt does, and so does a
    proof, where one follows. What is to be removed is gone when it is not listed, whatever was said."""
    if step.problem is None or step.kind is Kind.REMOVE or step.proves:
        return False
    return answered(step.problem)


def _goal_met(step: Step, seen: Observation) -> StepReason | None:
    """How the node has come to have what is wanted of it; None when it has not, or that is unknown."""
    if seen.away or seen.installed is None or _may_not_start(step, seen):
        return None
    match step.kind:
        case Kind.INSTALL if seen.installed and not _other_bytes(step, seen):
            listed = _from_list("it", step, seen) if step.attempt else _already_there(seen)
            return _kept(step, seen) or listed
        case Kind.UPGRADE if not step.attempt:
            had = StepCause.SAME_VERSION if seen.reports else StepCause.VERSION_LISTED
            return because(had) if _is_current(step, seen) else None
        case Kind.UPGRADE if seen.installed and step.goal.digest and seen.digest == step.goal.digest:
            return _from_list("this version", step, seen)
        case Kind.UPGRADE if seen.installed and _installed_anew(step, seen):
            return _from_list(f"a new installation of {step.goal.names[0]}", step, seen)
        case Kind.REMOVE if not seen.installed:
            return because(StepCause.GONE if step.attempt else StepCause.NOT_INSTALLED)
        case _:
            return None


def _is_current(step: Step, seen: Observation) -> bool:
    """Whether an upgrade that has not begun would change nothing. A gallery may call the same bytes a new
    version, which its worker then has to record; what does not start is not left as it is."""
    goal = step.goal
    if not seen.installed or goal.replaces or not goal.digest or goal.digest != seen.digest:
        return False
    return seen.start_check != StartCheck.FAILED and goal.version in ("", seen.version)


def _already_there(seen: Observation) -> StepReason:
    started = seen.start_check == StartCheck.STARTED
    return because(StepCause.NOTHING_TO_DO if started else StepCause.FILES_THERE)


def _may_not_start(step: Step, seen: Observation) -> bool:
    """Whether it is not known to start, though it is listed: its worker says so, or said so of the last
    attempt and does not tell more."""
    if step.kind is Kind.INSTALL and seen.start_check:
        return seen.start_check != StartCheck.STARTED
    return start_failed(step.problem) and not step.proves


def _does_not_start(step: Step, seen: Observation) -> bool:
    there = step.kind is Kind.INSTALL and bool(seen.installed) and not _other_bytes(step, seen)
    return there and seen.start_check == StartCheck.FAILED


def _from_list(what: str, step: Step, seen: Observation) -> StepReason:
    """How it is known that an attempt did what it was to do, though it was not answered."""
    if step.state is State.PENDING:
        return because(StepCause.REPORTED if seen.reports else StepCause.LISTED, what)
    restarted = seen.reports and seen.boot != step.boot
    if restarted or not seen.awaited:
        return because(StepCause.REPORTED_REPLY_LOST if seen.reports else StepCause.LISTED_REPLY_LOST, what)
    return because(StepCause.REPORTED_REPLY_DUE if seen.reports else StepCause.LISTED_REPLY_DUE, what)


def _installed_anew(step: Step, seen: Observation) -> bool:
    """Whether a worker without reports has another installation than before its upgrade was sent. One that
    has answered with a failure may have, too."""
    if step.listed_before is None or seen.installation is None or _contradicted(step):
        return False
    return seen.installation.replaces(step.listed_before)


def _other_bytes(step: Step, seen: Observation) -> bool:
    """Whether a reporting worker has something else than is pinned. Others install what a tag stands for."""
    return seen.reports and step.goal.digest not in ("", seen.digest)


def _why_not_yet(step: Step, seen: Observation, wish: Wish, now: datetime) -> StepReason | None:
    if wish is Wish.PAUSE and step.stage is Stage.APPLY:
        return because(StepCause.PAUSED)
    if seen.away:
        return because(StepCause.NODE_AWAY, seen.away)
    if seen.blocked is not None:
        return seen.blocked
    if step.wait_until is not None and now < step.wait_until:
        return _until_retry(step)
    return None


def _until_retry(step: Step) -> StepReason:
    """Why it waits for the time of its next attempt."""
    if step.problem is None or not step.problem.wait_s or step.wait_until is None:
        return because(StepCause.RETRY)
    return because(StepCause.SERVER_WAIT, f"{step.wait_until.astimezone(UTC):%H:%M:%S} UTC")


def _begin(step: Step, seen: Observation, at: Moment) -> StepChange:
    attempt = step.attempt + 1
    begun = replace(
        step,
        state=State.RUNNING,
        attempt=attempt,
        boot=seen.boot,
        answer_by=at.now + at.policy.answer,
        wait_until=at.now + _tolerated(seen, at.policy),
        why=None,
        listed_before=seen.installation if step.stage is Stage.APPLY else None,
    )
    return begun, Dispatch(step.op, step.node, _verb(step), attempt)


def _verb(step: Step) -> Verb:
    match step.stage:
        case Stage.APPLY:
            return _APPLY[step.kind]
        case Stage.PROVE:
            return Verb.PROVE
        case Stage.ROLL_BACK:
            return Verb.ROLL_BACK


def _tolerated(seen: Observation, policy: StepPolicy) -> timedelta:
    """Silence that proves nothing. A reporting worker soon shows what it has in hand; others only reply."""
    return policy.lease if seen.reports else policy.answer + policy.silence


# Begun, and over.


def _ended(step: Step, seen: Observation, at: Moment) -> Step | None:
    """The step after whatever ended its attempt; None while nothing has."""
    if seen.outcome is not None and seen.outcome.attempt == step.attempt:
        if seen.outcome.ending is None and _will_tell_its_version(step, seen, at):
            return None
        return _answered(step, seen.outcome.ending, seen, at)
    listed = _listed_before_its_reply(step, seen) and not _contradicted(step)
    # What a report shows at work is at work in that life, though it was meant for the one before.
    if seen.away or (seen.working and not listed and (seen.reports or seen.boot == step.boot)):
        return None
    known = listed or not _reply_may_come(step, seen, at)
    if step.stage is Stage.APPLY and known and (how := _goal_met(step, seen)):
        return _succeeded(step, how)
    if step.stage is Stage.APPLY and known and _does_not_start(step, seen):
        return _failed(step, did_not_start(seen.start_error), at)
    return _failed(step, RESTARTED, at) if seen.boot != step.boot and seen.told else None


def _reply_may_come(step: Step, seen: Observation, at: Moment) -> bool:
    """Whether the reply is still waited for: it is the truth for as long as it may come on time, and may say
    that what is in place does not start. A worker that reports shows when it is no longer at it, and replies
    then; what it was to remove is gone when it is not listed, whatever it says."""
    if not seen.awaited:
        return False
    if not seen.reports:
        return step.answer_by is not None and at.now < step.answer_by
    if seen.boot != step.boot or step.kind is Kind.REMOVE:
        return False
    return step.wait_until is None or at.now < step.wait_until


def _will_tell_its_version(step: Step, seen: Observation, at: Moment) -> bool:
    """Whether it has rolled back, and its next report will show to which version: that is waited for as long
    as for any report."""
    if step.stage is not Stage.ROLL_BACK or not seen.reports or seen.away or not step.goal.digest:
        return False
    untold = not seen.told or seen.digest == step.goal.digest
    return untold and step.wait_until is not None and at.now < step.wait_until


def _answered(step: Step, ending: Ending, seen: Observation, at: Moment) -> Step:
    match ending:
        case None:
            if step.stage is Stage.ROLL_BACK:
                return _rolled_back(step, seen)
            return _succeeded(step, _kept(step, seen) or _unverified(step, seen))
        case DoneWithNote(note) if step.kind is Kind.UPGRADE:  # There is no new version that had to start.
            return _close(replace(step, problem=None), State.SUCCEEDED, because(StepCause.NOTE, note))
        case DoneWithNote(note):
            return _succeeded(step, _kept(step, seen) or because(StepCause.NOTE, note))
        case NotNeeded(why) if step.state is not State.STOPPING:
            return _close(step, State.CANCELLED, because(StepCause.NOT_NEEDED, why))
        case NotNeeded():
            return _as_told(step)
        case Problem() if ending.code == NOT_PROVEN and (seen.proven_elsewhere or seen.proof_optional):
            cause = StepCause.PROVEN_ELSEWHERE if seen.proven_elsewhere else StepCause.NOT_PROVEN
            return _close(replace(step, problem=None), State.SUCCEEDED, because(cause, ending.message))
        case Problem():
            return _failed(step, ending, at)


def _kept(step: Step, seen: Observation) -> StepReason | None:
    """A worker without reports that is asked to install what it has says yes, and keeps what it has."""
    if seen.reports or step.kind is not Kind.INSTALL or not seen.installed or step.goal.replaces:
        return None
    if not step.goal.digest or seen.digest in ("", step.goal.digest):
        return None
    return because(StepCause.KEPT_OTHER_BYTES, seen.digest)


def _unverified(step: Step, seen: Observation) -> StepReason | None:
    """LocalAI's workers fetch by the tag, and their reply does not tell which bytes they have now."""
    if not step.goal.tag_decides or step.goal.digest in ("", seen.digest):
        return None
    return because(StepCause.UNVERIFIED)


def _listed_before_its_reply(step: Step, seen: Observation) -> bool:
    """Whether a worker without reports has put in place what it was asked to install. Its reply may have been
    lost on the way, unnoticed. What is to be replaced differs only in its digest."""
    if seen.reports or step.kind is not Kind.INSTALL or not seen.installed:
        return False
    return not step.goal.replaces or (step.goal.digest != "" and seen.digest == step.goal.digest)


def _succeeded(step: Step, how: StepReason | None) -> Step:
    match step.stage:
        case Stage.APPLY if step.proves and step.attempt:
            return _next_stage(step, Stage.PROVE)
        case _:
            return _close(replace(step, problem=None), State.SUCCEEDED, how)


def _rolled_back(step: Step, seen: Observation) -> Step:
    """Workers keep one version, the last that ran: it is not always the one that was upgraded."""
    assert step.problem is not None, "something made it go back"
    version = "the last version kept there"
    if seen.installed and seen.digest not in ("", step.goal.digest):
        digest = f"{seen.digest[:_DIGEST_CHARS]}…"
        named = f"{seen.version} ({digest})" if seen.version else digest
        version = f"{named}, the last version kept there"
    return _close(step, State.FAILED, because(StepCause.ROLLED_BACK, step.problem.message, version))


def _failed(step: Step, problem: Problem, at: Moment) -> Step:
    """Tried again after a while, as long as that may help; then left for a person to look at."""
    if step.state is State.STOPPING:
        return _as_told(step)
    if step.by_frontend and problem.code == LOST.code and step.attempt < at.policy.owners_max:
        return _taken_over(step, problem, at)
    ahead = _got_ahead(step, problem)
    problem = _said_ahead(problem) if ahead else _with_furthest(step, problem)
    if problem.unanswered:
        return _unanswered(step, problem, at)
    # What is fetched piece by piece is once whole, however many attempts that takes: none of them failed.
    failures, policy = 0 if ahead else step.failures + 1, _policy_for(step, problem, at.policy)
    spent = failures >= policy.failures_max
    # A worker that is lost again and again over a proof may be lost because of it.
    unproven = problem.code in (PROOF_FAILED, NOT_PROVEN) or (spent and problem.code == LOST.code)
    if step.stage is Stage.PROVE and unproven:
        return _unproven(step, problem)
    step = replace(_idle(step), failures=failures)
    if spent or not problem.retryable:
        return _given_up(step, problem)
    # What made it go back is what a person has to know, not what keeps it from going back now.
    kept = step.problem if step.stage is Stage.ROLL_BACK and step.problem is not None else problem
    soon = ahead or (problem == RESTARTED and failures == 1)
    first = min(_SOON, policy.backoff_first) if soon else policy.backoff_first
    delay = Backoff(first, policy.backoff_most, _JITTER).delay(max(failures, 1), at.fraction)
    asked = timedelta(seconds=min(problem.wait_s, policy.server_wait_most.total_seconds()))
    until = at.now + max(delay, asked)
    waiting = replace(step, state=State.PENDING, problem=kept, wait_until=until)
    return replace(waiting, why=_until_retry(waiting))


def _got_ahead(step: Step, problem: Problem) -> bool:
    """Whether the attempt left more for the next one than any before it. Only that bounds how often it is so:
    nothing has more bytes than it has."""
    before = 0 if step.problem is None else step.problem.kept_bytes
    passes = problem.retryable and problem.code not in LIKELY_PERMANENT
    return step.stage is Stage.APPLY and passes and problem.kept_bytes > before


def _said_ahead(problem: Problem) -> Problem:
    came = f"{install_size(problem.kept_bytes)} of it came"
    return replace(problem, message=f"{problem.message} ({came})")


def _with_furthest(step: Step, problem: Problem) -> Problem:
    """What another frontend goes on from is on its own disk, of which nothing is known."""
    before = 0 if step.problem is None else step.problem.kept_bytes
    if problem.kept_bytes >= before or (step.by_frontend and problem.code == LOST.code):
        return problem
    return replace(problem, kept_bytes=before)


def _taken_over(step: Step, problem: Problem, at: Moment) -> Step:
    """The frontend that was at it is gone, which is no failure of what it did."""
    until = at.now + _TAKE_OVER
    return replace(
        _idle(step), state=State.PENDING, problem=problem, wait_until=until, why=because(StepCause.RETRY)
    )


def _unanswered(step: Step, problem: Problem, at: Moment) -> Step:
    """The source, or this network, may be away for a while: not counted as a failure of what was tried."""
    before, policy = step.problem, at.policy
    since = (before.unanswered_since if before is not None else None) or at.now
    tries = problem.unanswered + (before.unanswered if before is not None else 0)
    until = since + policy.unanswered_most
    over = at.now >= until
    told = f"{UNREACHABLE_SINCE} {_clock(since)}" + ("" if over else f", retried until {_clock(until)}")
    problem = replace(
        problem, message=f"{problem.message} ({told})", unanswered=tries, unanswered_since=since
    )
    if over:
        return _given_up(replace(_idle(step), failures=step.failures + 1), problem)
    delay = Backoff(policy.backoff_first, policy.unanswered_backoff_most, _JITTER).delay(tries, at.fraction)
    waiting = replace(_idle(step), state=State.PENDING, problem=problem, wait_until=at.now + delay)
    return replace(waiting, why=because(StepCause.RETRY))


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M} UTC"


def _as_told(step: Step) -> Step:
    """It was asked to stop, and did."""
    return replace(_idle(step), state=State.PENDING)


def _policy_for(step: Step, problem: Problem, policy: StepPolicy) -> StepPolicy:
    most = policy.failures_max
    if problem.code in LIKELY_PERMANENT:
        most = min(most, policy.doubtful_failures_max)
    if step.stage is Stage.ROLL_BACK:
        most = min(most, policy.rollback_failures_max)
    return replace(policy, failures_max=most)


def _given_up(step: Step, problem: Problem) -> Step:
    """Failed for good. Where the node may be left with an unwanted version, the reason says what helps."""
    match step.stage:
        case Stage.APPLY:
            return _failed_with(step, problem)
        case Stage.PROVE:
            why = because(StepCause.LEFT_UNPROVEN, problem.message)
            problem = replace(problem, hint=problem.hint or "retry it, to have it proven")
            return _close(replace(step, problem=problem), State.FAILED, why)
        case Stage.ROLL_BACK:
            first = step.problem or problem
            why = because(StepCause.ROLLBACK_FAILED, first.message, problem.message)
            return _close(replace(step, problem=replace(first, hint=_STUCK)), State.FAILED, why)


def _failed_with(step: Step, problem: Problem) -> Step:
    return _close(replace(step, problem=problem), State.FAILED, because(StepCause.PROBLEM, problem.message))


_STUCK = "remove the backend from this node and install the version that works, or upgrade it to a newer one"


def _unproven(step: Step, problem: Problem) -> Step:
    step = replace(step, problem=problem)
    if step.rolls_back:
        return _next_stage(step, Stage.ROLL_BACK)
    return _close(step, State.FAILED, because(StepCause.NO_ROLLBACK, problem.message))


def _next_stage(step: Step, stage: Stage) -> Step:
    return replace(_idle(step), state=State.PENDING, stage=stage, failures=0)


# Begun, and nothing heard.


def _keep_waiting(step: Step, seen: Observation, wish: Wish, at: Moment) -> StepChange:
    if seen.away and (step.state is State.STOPPING or wish is Wish.CANCEL):
        return _stopped(step, wish, may_go_on=Remainder.OFFLINE), None
    if wish is Wish.CANCEL and step.answer_by is not None and at.now >= step.answer_by:
        return _stopped(step, wish, may_go_on=Remainder.TOO_SLOW), None
    if seen.away:  # Silence says nothing now: the clock stands still.
        return replace(step, wait_until=None, why=because(StepCause.NODE_AWAY, seen.away)), None
    if seen.working:
        return _still_working(step, seen, at)
    if step.wait_until is None:
        return replace(step, wait_until=at.now + _tolerated(seen, at.policy), why=None), None
    if step.state is State.RUNNING and wish is Wish.RUN and _may_be_said_again(step, seen, at):
        return _begin(step, seen, at)
    # After a time without any report, it is given the time to send one.
    if at.now < step.wait_until + (timedelta() if seen.told else at.policy.lease):
        return step, None
    if step.state is State.STOPPING:
        return _stopped(step, wish, may_go_on=None if seen.reports else Remainder.CANNOT_STOP), None
    return _failed(step, LOST if seen.reports or step.kind is Kind.INSTALL else UNKNOWN, at), None


def _may_be_said_again(step: Step, seen: Observation, at: Moment) -> bool:
    """The reply was missed, and a worker without reports says since then that it has not done it, or not yet.
    A request repeated is carried out once, and the second is answered. An upgrade would be done twice. An
    install may take its time: one whose progress arrives is not repeated (see `working`), nor is one before
    its list is younger than the missed reply by a while."""
    if seen.reports or seen.awaited or seen.blocked or seen.installed is None:
        return False
    if step.kind is Kind.REMOVE:  # Soon over: what is still there was not removed.
        return step.answer_by is not None and at.now >= step.answer_by
    return step.kind is Kind.INSTALL and seen.lacking


def _still_working(step: Step, seen: Observation, at: Moment) -> StepChange:
    stopping = step.state is State.STOPPING
    until = _renewed(step, at.policy.lease if stopping else _tolerated(seen, at.policy), at.now)
    # It should know by now that this is not wanted: say it again.
    again = Dispatch(step.op, step.node, Verb.CANCEL, step.attempt) if stopping else None
    kept = _with_reason(step, step.why if stopping else None)
    return (kept, None) if until == step.wait_until else (replace(kept, wait_until=until), again)


def _renewed(step: Step, lease: timedelta, now: datetime) -> datetime:
    """A lease is renewed when half of it is used up, for each renewal is a write."""
    if step.wait_until is not None and step.wait_until - now > lease / 2:
        return step.wait_until
    return now + lease


# Begun, and unwanted.


def _begin_stopping(step: Step, seen: Observation, wish: Wish, at: Moment) -> StepChange:
    """Only what is being applied. Proofs and ways back are soon over, and leave a node as it should be; so
    they are let go on, but not tried again.

    A node that is away cannot be reached, and is not waited for: a cancellation is sent if it comes back at
    work on this.
    """
    if seen.away:
        return _stopped(step, wish, may_go_on=Remainder.OFFLINE), None
    why, ends_by = because(StepCause.PAUSING), step.answer_by
    if wish is Wish.CANCEL:
        latest = at.now + at.policy.stop
        why, ends_by = because(StepCause.CANCELLING), latest if ends_by is None else min(ends_by, latest)
    until = at.now + at.policy.lease
    stopping = replace(step, state=State.STOPPING, wait_until=until, answer_by=ends_by, why=why)
    return stopping, Dispatch(step.op, step.node, Verb.CANCEL, step.attempt)


def _unless_unwanted(step: Step, wish: Wish) -> Step:
    """What was achieved stays achieved; what is not wanted is not tried again."""
    if step.state is not State.PENDING or wish is Wish.RUN:
        return step
    # A proof, or the way back after it, is begun once, and then not again.
    if step.stage is not Stage.APPLY and (wish is Wish.PAUSE or not step.failures):
        return step
    return _stopped(step, wish)


def _stopped(step: Step, wish: Wish, *, may_go_on: Remainder | None = None) -> Step:
    if wish is not Wish.CANCEL:
        return replace(_idle(step), state=State.PENDING)
    left = [one.value for one in (may_go_on, _LEFT_WITH.get(step.stage)) if one is not None]
    return _close(step, State.CANCELLED, because(StepCause.CANCELLED, *left))


_LEFT_WITH = {Stage.PROVE: Remainder.UNPROVEN_VERSION, Stage.ROLL_BACK: Remainder.BROKEN_VERSION}


def _idle(step: Step) -> Step:
    return replace(step, boot=None, answer_by=None, wait_until=None, why=None)


def _close(step: Step, state: State, why: StepReason | None) -> Step:
    return replace(_idle(step), state=state, why=why)
