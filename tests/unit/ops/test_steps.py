"""`advance`, claim by claim."""

from dataclasses import replace
from datetime import timedelta

import pytest

from remuda.core.errors import Problem
from remuda.core.ids import BootId
from remuda.ops import concurrency
from remuda.ops.concurrency import asked_again, retried
from remuda.ops.failures import START_FAILED
from remuda.ops.model import (
    Dispatch,
    DoneWithNote,
    Goal,
    Kind,
    NotNeeded,
    Observation,
    Outcome,
    Stage,
    State,
    Step,
    Verb,
    Wish,
)
from remuda.ops.reasons import StepCause, because
from remuda.ops.replies import UNREACHABLE
from remuda.ops.steps import LOST, NOT_PROVEN, advance
from tests.unit.ops.build import BOOT, NODE, NOW, OP, PINNED, a_step, at, running

BEHIND_X = because(StepCause.OTHER_OPERATION_HERE, "x")
UP = Observation(boot=BOOT, installed=False)
FOREIGN = replace(UP, reports=False, installed=None)
BROKEN = Problem("install_failed", "no such image", retryable=True)
HOPELESS = Problem("refused", "the name is not allowed")
NOT_STARTED = Problem(START_FAILED, "installed, but it did not start: exit code 1", retryable=True)
BAD_VERSION = Problem("proof_failed", "the new version does not start: exit code 1", retryable=True)
BUS_DOWN = Problem("bus_unusable", "the bus is down", retryable=True)


def after(step: Step, seen: Observation, seconds: float = 0, wish: Wish = Wish.RUN) -> Step:
    return advance(step, seen, wish, at(seconds))[0]


def sent(step: Step, seen: Observation, seconds: float = 0, wish: Wish = Wish.RUN) -> Dispatch | None:
    return advance(step, seen, wish, at(seconds))[1]


# Beginning.


@pytest.mark.parametrize(
    ("kind", "verb", "installed"),
    [
        (Kind.INSTALL, Verb.INSTALL, False),
        (Kind.UPGRADE, Verb.UPGRADE, True),
        (Kind.REMOVE, Verb.REMOVE, True),
    ],
)
def test_a_step_whose_node_is_up_is_sent_as_attempt_one(kind: Kind, verb: Verb, installed: bool) -> None:
    step, dispatch = advance(a_step(kind), replace(UP, installed=installed), Wish.RUN, at())
    assert (step.state, step.attempt, step.boot) == (State.RUNNING, 1, BOOT)
    assert dispatch == Dispatch(OP, NODE, verb, 1)


def test_a_node_that_is_away_queues_the_step_with_the_reason_and_sends_nothing() -> None:
    away = replace(UP, away="silent for 3 minutes; done when it returns")
    assert after(a_step(), away).reason == "silent for 3 minutes; done when it returns"
    assert sent(a_step(), away) is None


def test_a_step_waits_for_its_turn() -> None:
    step, dispatch = advance(a_step(), replace(UP, blocked=BEHIND_X), Wish.RUN, at())
    assert (step.state, step.why, dispatch) == (State.PENDING, BEHIND_X, None)


@pytest.mark.parametrize(
    ("kind", "seen", "words"),
    [
        (
            Kind.INSTALL,
            replace(UP, installed=True, digest=PINNED),
            "its files were already there; nothing was fetched or started",
        ),
        (
            Kind.INSTALL,
            replace(UP, installed=True, digest=PINNED, start_check="started"),
            "already there; nothing to do",
        ),
        (Kind.REMOVE, UP, "it was not installed"),
        (Kind.UPGRADE, replace(UP, installed=True, digest=PINNED), "it already had this version"),
    ],
)
def test_what_is_so_already_succeeds_without_a_message(kind: Kind, seen: Observation, words: str) -> None:
    step, dispatch = advance(a_step(kind, digest=PINNED), seen, Wish.RUN, at())
    assert (step.state, step.reason, dispatch) == (State.SUCCEEDED, words, None)


@pytest.mark.parametrize("digest", ["", "sha256:" + "b" * 64])
def test_an_install_with_a_pin_is_not_done_by_other_bytes(digest: str) -> None:
    other = replace(UP, installed=True, digest=digest)
    assert sent(a_step(digest=PINNED), other) == Dispatch(OP, NODE, Verb.INSTALL, 1)
    pinned = running(goal=a_step(digest=PINNED).goal)
    assert after(pinned, other, seconds=1).state is State.RUNNING
    assert after(pinned, replace(other, boot=BootId("boot-2")), seconds=1).state is State.PENDING
    lost = replace(other, awaited=False)
    assert after(pinned, lost, seconds=1).state is State.RUNNING
    assert after(pinned, replace(lost, digest=PINNED), seconds=1).state is State.SUCCEEDED


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
def test_a_report_ends_nothing_while_its_workers_reply_may_come(kind: Kind) -> None:
    """It may say that what is in place does not start."""
    step, there = running(kind, goal=a_step(digest=PINNED).goal), replace(UP, installed=True, digest=PINNED)
    assert after(step, there, seconds=59).state is State.RUNNING
    late, lost = after(step, there, seconds=60), after(step, replace(there, awaited=False), seconds=1)
    restarted = after(step, replace(there, boot=BootId("boot-2")), seconds=1)
    assert {one.state for one in (late, lost, restarted)} == {State.SUCCEEDED}
    assert late.reason.endswith("; its reply has not arrived")
    assert lost.reason.endswith("; its reply was lost")
    assert restarted.reason == lost.reason


def test_an_install_that_found_nothing_to_do_says_so() -> None:
    done = after(
        running(), replace(UP, outcome=Outcome(1, DoneWithNote("already there; nothing to do"))), seconds=1
    )
    assert (done.state, done.reason) == (State.SUCCEEDED, "already there; nothing to do")


LISTED = replace(UP, installed=True, digest=PINNED)
UNSTARTED = replace(LISTED, start_check="failed", start_error="mine did not start: it ended with exit code 3")


@pytest.mark.parametrize(("awaited", "boot"), [(False, BOOT), (True, BootId("boot-2"))])
def test_a_report_ends_an_install_only_as_its_start_went(awaited: bool, boot: BootId) -> None:
    """The frontend that waited for the reply is gone, or the worker is in another life."""
    step = running(goal=a_step(digest=PINNED).goal)
    listed = replace(LISTED, awaited=awaited, boot=boot)
    unstarted = replace(UNSTARTED, awaited=awaited, boot=boot)
    unchecked = after(step, replace(listed, start_check="unchecked"), seconds=1)
    assert unchecked.state in (State.RUNNING, State.PENDING), "it is told later, or tried again"
    started = after(step, replace(listed, start_check="started"), seconds=1)
    assert started.state is State.SUCCEEDED
    failed = after(step, unstarted, seconds=1)
    assert (failed.state, failed.failures) == (State.PENDING, 1)
    assert failed.problem is not None
    assert failed.problem.code == START_FAILED
    assert failed.problem.message == "installed, but mine did not start: it ended with exit code 3"
    last = after(replace(step, failures=2), unstarted, seconds=1)
    assert (last.state, last.reason) == (State.FAILED, failed.problem.message)


@pytest.mark.parametrize("seen", [UNSTARTED, replace(LISTED, start_check="unchecked")])
def test_what_is_there_and_is_not_known_to_start_is_started_by_an_install(seen: Observation) -> None:
    assert sent(a_step(digest=PINNED), seen) == Dispatch(OP, NODE, Verb.INSTALL, 1)


def test_a_start_that_failed_before_ends_nothing_while_another_is_under_way() -> None:
    step = running(goal=a_step(digest=PINNED).goal)
    for seen in (UNSTARTED, replace(UNSTARTED, awaited=False, working=True)):
        assert after(step, seen, seconds=1).state is State.RUNNING


def test_an_install_that_a_list_ends_says_so() -> None:
    listed = replace(FOREIGN, installed=True)
    assert after(running(), listed, 1).reason == "the node lists it; its reply has not arrived"
    assert (
        after(running(), replace(listed, awaited=False), 1).reason == "the node lists it; its reply was lost"
    )


def test_of_a_worker_without_reports_an_install_is_done_whatever_its_list_says_of_bytes() -> None:
    pinned = running(goal=a_step(digest=PINNED).goal, answer_by=NOW)
    listed = replace(FOREIGN, installed=True, digest="sha256:" + "b" * 64)
    for seen in (listed, replace(listed, outcome=Outcome(1))):
        done = after(pinned, seen, seconds=1)
        assert done.state is State.SUCCEEDED
        assert done.reason.startswith("the node lists sha256:bbb"), "and that is said"
    assert after(pinned, replace(listed, digest=PINNED, outcome=Outcome(1))).reason == ""


def test_a_reply_of_a_worker_that_fetches_by_the_tag_does_not_say_which_bytes_it_has() -> None:
    goal = replace(a_step(digest=PINNED).goal, tag_decides=True)
    done = after(running(goal=goal), replace(FOREIGN, outcome=Outcome(1)))
    assert (done.state, done.reason.partition(",")[0]) == (State.SUCCEEDED, "done")
    listed = replace(FOREIGN, outcome=Outcome(1), installed=True, digest=PINNED)
    assert after(running(goal=goal), listed).reason == ""


def test_an_install_without_a_pin_is_done_by_whatever_is_there() -> None:
    assert after(a_step(), replace(UP, installed=True, digest=PINNED)).state is State.SUCCEEDED


def test_an_upgrade_without_a_pin_is_always_sent() -> None:
    assert sent(a_step(Kind.UPGRADE), replace(UP, installed=True, digest=PINNED)) is not None


def test_what_a_node_has_is_not_concluded_while_nobody_knows() -> None:
    assert sent(a_step(Kind.REMOVE), replace(UP, installed=None)) is not None


def test_an_expired_step_that_never_began_fails() -> None:
    step = after(a_step(expires=NOW), replace(UP, away="asleep"), seconds=1)
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "expired")


def test_an_attempt_at_work_is_not_cut_off_by_the_expiry() -> None:
    assert after(running(expires=NOW), replace(UP, working=True), seconds=1).state is State.RUNNING


# Ending.


def test_a_good_reply_ends_the_step() -> None:
    assert after(running(), replace(UP, outcome=Outcome(1))).state is State.SUCCEEDED


def test_the_reply_alone_decides_while_the_attempt_is_at_work() -> None:
    seen = replace(UP, installed=True, working=True)
    assert after(running(), seen).state is State.RUNNING
    failed = after(running(), replace(seen, outcome=Outcome(1, BROKEN)))
    assert failed.state is State.PENDING


def test_news_of_an_earlier_attempt_is_no_news() -> None:
    seen = replace(UP, outcome=Outcome(1, HOPELESS), working=True)
    assert after(running(attempt=2), seen).state is State.RUNNING


@pytest.mark.parametrize("kind", [Kind.UNLOAD, Kind.LOAD])
def test_what_a_frontend_saw_no_need_for_is_cancelled_and_no_failure(kind: Kind) -> None:
    needless = Outcome(1, NotNeeded("it was used again"))
    step = after(replace(running(), kind=kind), replace(UP, outcome=needless))
    assert (step.state, step.reason) == (State.CANCELLED, "it was used again")


def test_a_hard_failure_backs_off_from_thirty_seconds_doubling_to_fifteen_minutes() -> None:
    delays = []
    for failures in range(9):
        step = after(running(failures=failures), replace(UP, outcome=Outcome(1, BROKEN)))
        assert step.wait_until is not None
        delays.append((step.wait_until - NOW).total_seconds())
    assert delays == [30, 60, 120, 240, 480, 900, 900, 900, 900]


def test_the_tenth_hard_failure_waits_for_a_person() -> None:
    step = after(running(failures=9), replace(UP, outcome=Outcome(1, BROKEN)))
    assert (step.state, step.reason, step.problem) == (State.FAILED, "no such image", BROKEN)


def test_a_failure_that_trying_again_cannot_help_ends_at_once() -> None:
    assert after(running(), replace(UP, outcome=Outcome(1, HOPELESS))).state is State.FAILED


def test_bytes_that_are_not_as_promised_are_asked_for_a_few_times_only() -> None:
    refused = Outcome(1, Problem("content_refused", "it has another digest", retryable=True))
    assert after(running(failures=1), replace(UP, outcome=refused)).state is State.PENDING
    given_up = after(running(failures=2), replace(UP, outcome=refused))
    assert (given_up.state, given_up.reason) == (State.FAILED, "it has another digest")


def test_a_step_in_backoff_says_so_from_the_start() -> None:
    waits = after(running(), replace(UP, outcome=Outcome(1, BROKEN)))
    assert (waits.state, waits.why) == (State.PENDING, because(StepCause.RETRY))
    assert after(waits, UP, seconds=1) is waits, "and that is not written again"


def test_a_step_is_not_begun_again_before_its_time() -> None:
    waiting = a_step(attempt=1, failures=1, wait_until=NOW + timedelta(seconds=30))
    assert sent(waiting, UP, seconds=29) is None
    assert sent(waiting, UP, seconds=30) == Dispatch(OP, NODE, Verb.INSTALL, 2)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
def test_a_failure_that_the_worker_answered_is_not_overruled_by_its_list(kind: Kind) -> None:
    listed = replace(UP, installed=True, digest=PINNED)
    failed = replace(listed, outcome=Outcome(1, BROKEN))
    waits = after(running(kind, goal=a_step(digest=PINNED).goal), failed)
    assert waits.state is State.PENDING
    assert after(waits, listed, seconds=1) is waits
    assert sent(waits, listed, seconds=3600) == Dispatch(OP, NODE, Verb(kind.value), 2)
    again = asked_again(waits)
    assert sent(again, listed) == Dispatch(OP, NODE, Verb(kind.value), 2), "at once, when it is asked for"
    done = after(after(again, listed), replace(listed, outcome=Outcome(2)))
    assert done.state is State.SUCCEEDED, "only the answer to a later attempt ends it well"


def test_of_a_worker_without_reports_files_that_are_left_by_a_failed_attempt_do_not_end_the_next() -> None:
    listed = replace(FOREIGN, installed=True, working=True)
    assert after(running(attempt=2, problem=BROKEN), listed, seconds=1).state is State.RUNNING
    overdue = replace(listed, working=False, awaited=False)
    assert after(running(attempt=2, problem=BROKEN), overdue, seconds=1).state is State.SUCCEEDED


def test_what_was_not_answered_by_the_worker_is_ended_by_its_list() -> None:
    listed = replace(UP, installed=True)
    for trouble in (LOST, UNREACHABLE, BUS_DOWN):
        waits = after(running(), replace(UP, outcome=Outcome(1, trouble)))
        assert after(waits, listed, seconds=1).state is State.SUCCEEDED


def test_an_install_that_does_not_start_fails_after_a_few_attempts() -> None:
    listed = replace(UP, installed=True)
    step = running()
    for attempt in (1, 2):
        step = after(step, replace(listed, outcome=Outcome(attempt, NOT_STARTED)))
        assert (step.state, step.failures) == (State.PENDING, attempt)
        step = after(step, listed, seconds=3600 * attempt)
        assert after(step, listed, seconds=3600 * attempt).state is State.RUNNING, "its list says nothing"
    step = after(step, replace(listed, outcome=Outcome(3, NOT_STARTED)))
    assert (step.state, step.reason, step.problem) == (State.FAILED, NOT_STARTED.message, NOT_STARTED)
    assert sent(retried(step), listed) == Dispatch(OP, NODE, Verb.INSTALL, 4), "a retry starts it again"


def test_where_a_proof_follows_it_decides_and_not_an_earlier_start() -> None:
    step = running(Kind.UPGRADE, proves=True, goal=a_step(digest=PINNED).goal)
    listed = replace(UP, installed=True, digest=PINNED)
    waits = after(step, replace(listed, outcome=Outcome(1, NOT_STARTED)))
    assert after(waits, listed, seconds=1).stage is Stage.PROVE


# Slow workers.


def test_a_worker_that_shows_the_work_is_never_given_up() -> None:
    step = running()
    for hour in range(1, 200):
        step, dispatch = advance(step, replace(UP, working=True), Wish.RUN, at(hour * 3600))
        assert (step.state, step.failures, dispatch) == (State.RUNNING, 0, None)


def test_a_restarted_worker_has_lost_the_job_and_that_is_noticed_at_once() -> None:
    step = after(running(), replace(UP, boot=BootId("boot-2")), seconds=1)
    assert step.state is State.PENDING
    assert step.problem is not None
    assert step.problem.message == "the worker was restarted while working on this"


def test_what_a_restart_interrupted_goes_on_in_seconds_but_only_once() -> None:
    first, second = (replace(UP, boot=BootId(f"boot-{life}")) for life in (2, 3))
    assert (step := after(after(running(), first, seconds=1), first, seconds=4)).attempt == 2
    assert sent(after(step, second, seconds=5), second, seconds=40) is None, "it may be what ends the worker"


def test_a_restarted_worker_that_has_the_backend_is_done() -> None:
    step = after(running(), replace(UP, boot=BootId("boot-2"), installed=True), seconds=1)
    assert step.state is State.SUCCEEDED


def test_a_reporting_worker_that_shows_nothing_for_a_lease_has_lost_the_attempt() -> None:
    assert after(running(), UP, seconds=59).state is State.RUNNING
    assert after(running(), UP, seconds=60).problem is not None


def test_silence_while_the_node_is_away_does_not_count() -> None:
    frozen = after(running(), replace(UP, away="silent"), seconds=30)
    assert (frozen.state, frozen.wait_until) == (State.RUNNING, None)
    resumed = after(frozen, UP, seconds=90_000)
    assert (resumed.state, resumed.failures) == (State.RUNNING, 0)
    assert resumed.wait_until == NOW + timedelta(seconds=90_060)


@pytest.mark.parametrize("working", [True, False])
def test_of_a_worker_without_reports_presence_ends_an_install_though_its_request_is_open(
    working: bool,
) -> None:
    seen = replace(FOREIGN, installed=True, working=working)
    step = running(wait_until=NOW + timedelta(hours=2, minutes=15))
    assert after(step, seen, seconds=60).state is State.SUCCEEDED
    assert after(step, replace(seen, installed=False), seconds=60) == step, "and nothing is said again"


def test_presence_does_not_end_an_install_that_replaces_what_has_its_name() -> None:
    replaces = running(wait_until=NOW + timedelta(hours=2), goal=Goal(("mine",), PINNED, replaces=True))
    seen = replace(FOREIGN, installed=True, working=True)
    assert after(replaces, seen, seconds=60).state is State.RUNNING
    assert after(replaces, replace(seen, digest=PINNED), seconds=60).state is State.SUCCEEDED


@pytest.mark.parametrize("kind", [Kind.UPGRADE, Kind.REMOVE])
def test_of_a_worker_without_reports_only_the_reply_ends_an_upgrade_or_removal(kind: Kind) -> None:
    installed = kind is Kind.UPGRADE
    seen = replace(FOREIGN, installed=installed, digest=PINNED if installed else "", working=True)
    step = running(kind, wait_until=NOW + timedelta(hours=2), goal=a_step(digest=PINNED).goal)
    assert after(step, seen, seconds=60).state is State.RUNNING


def test_of_a_worker_without_reports_an_unheard_upgrade_is_not_repeated() -> None:
    step = after(running(Kind.UPGRADE, wait_until=NOW), FOREIGN, seconds=1)
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "outcome_unknown")


def test_a_late_reply_of_a_worker_without_reports_still_counts() -> None:
    step = running(Kind.UPGRADE, wait_until=NOW + timedelta(hours=2))
    assert after(step, replace(FOREIGN, outcome=Outcome(1)), seconds=5000).state is State.SUCCEEDED


# Cancel and pause.


def test_cancelling_what_has_not_begun_ends_it() -> None:
    step, dispatch = advance(a_step(), UP, Wish.CANCEL, at())
    assert (step.state, dispatch) == (State.CANCELLED, None)
    assert step.reason == "cancelled before it began"


def test_cancelling_between_attempts_does_not_say_that_it_never_began() -> None:
    step, dispatch = advance(replace(a_step(), attempt=3), UP, Wish.CANCEL, at())
    assert (step.state, dispatch) == (State.CANCELLED, None)
    assert step.reason == "cancelled before the next attempt"


def test_cancelling_what_runs_tells_the_worker_and_waits_for_the_end() -> None:
    step, dispatch = advance(running(), replace(UP, working=True), Wish.CANCEL, at())
    assert (step.state, dispatch) == (State.STOPPING, Dispatch(OP, NODE, Verb.CANCEL, 1))
    cancelled = Outcome(1, Problem("cancelled", "cancelled"))
    assert after(step, replace(UP, outcome=cancelled), wish=Wish.CANCEL).state is State.CANCELLED


def test_a_cancel_that_was_not_heard_is_said_again() -> None:
    stopping = after(running(), replace(UP, working=True), wish=Wish.CANCEL)
    assert sent(stopping, replace(UP, working=True), seconds=10, wish=Wish.CANCEL) is None
    again = sent(stopping, replace(UP, working=True), seconds=31, wish=Wish.CANCEL)
    assert again == Dispatch(OP, NODE, Verb.CANCEL, 1)


def test_what_was_finished_before_the_cancel_arrived_is_shown_as_finished() -> None:
    stopping = after(running(), replace(UP, working=True), wish=Wish.CANCEL)
    assert after(stopping, replace(UP, outcome=Outcome(1)), wish=Wish.CANCEL).state is State.SUCCEEDED


def test_a_worker_that_cannot_be_told_is_said_so() -> None:
    stopping = after(running(), replace(FOREIGN, working=True), wish=Wish.CANCEL)
    step = after(stopping, FOREIGN, seconds=61, wish=Wish.CANCEL)
    assert step.state is State.CANCELLED
    assert "cannot be asked to stop" in step.reason


def test_cancelling_does_not_wait_for_a_node_that_is_away() -> None:
    step = after(running(), replace(UP, away="asleep"), wish=Wish.CANCEL)
    assert step.state is State.CANCELLED
    assert "it was offline" in step.reason


def test_a_paused_step_goes_on_where_it_was_when_resumed() -> None:
    stopping = after(running(), replace(UP, working=True), wish=Wish.PAUSE)
    paused = after(stopping, replace(UP, outcome=Outcome(1, NotNeeded("x"))), wish=Wish.PAUSE)
    assert (paused.state, paused.failures) == (State.PENDING, 0)
    assert after(paused, UP, wish=Wish.PAUSE).reason == "paused"
    assert sent(paused, UP) == Dispatch(OP, NODE, Verb.INSTALL, 2)


def test_a_removed_node_ends_its_steps() -> None:
    step = after(running(), replace(UP, exists=False))
    assert (step.state, step.reason) == (State.CANCELLED, "the node was removed from the fleet")


# Upgrades that prove themselves.


def proving(stage: Stage = Stage.APPLY, **more: object) -> Step:
    return running(Kind.UPGRADE, proves=True, rolls_back=True, stage=stage, **more)


def test_after_the_upgrade_the_new_version_has_to_start() -> None:
    applied = after(proving(), replace(UP, outcome=Outcome(1)))
    assert (applied.state, applied.stage) == (State.PENDING, Stage.PROVE)
    assert sent(applied, UP) == Dispatch(OP, NODE, Verb.PROVE, 2)


def test_a_version_that_started_is_good() -> None:
    assert after(proving(Stage.PROVE), replace(UP, outcome=Outcome(1))).state is State.SUCCEEDED


def test_a_version_that_does_not_start_takes_the_node_back_to_the_one_before() -> None:
    unproven = after(proving(Stage.PROVE), replace(UP, outcome=Outcome(1, BAD_VERSION)))
    assert unproven.stage is Stage.ROLL_BACK
    assert sent(unproven, UP) == Dispatch(OP, NODE, Verb.ROLL_BACK, 2)
    back = after(proving(Stage.ROLL_BACK, problem=BAD_VERSION), replace(UP, outcome=Outcome(1)))
    assert back.state is State.FAILED
    assert back.reason == f"{BAD_VERSION.message}; the node was rolled back to the last version kept there"


def test_the_version_that_a_node_was_rolled_back_to_is_named() -> None:
    goal = a_step(digest=PINNED).goal
    step = replace(proving(Stage.ROLL_BACK, problem=BAD_VERSION), goal=goal)
    done = replace(UP, installed=True, digest=PINNED, outcome=Outcome(1))
    for untold in (done, replace(done, told=False, installed=None, digest="")):
        assert after(step, untold, seconds=1) == step, "its next report tells"
        ended = after(step, untold, seconds=60)
        assert ended.reason.endswith("; the node was rolled back to the last version kept there")
    told = replace(done, digest="sha256:" + "b" * 64)
    for version, words in (("1.2", "1.2 (sha256:bbbbbbbbbbbb…)"), ("", "sha256:bbbbbbbbbbbb…")):
        back = after(step, replace(told, version=version), seconds=1)
        assert back.state is State.FAILED
        assert back.reason.endswith(f"; the node was rolled back to {words}, the last version kept there")


def test_a_worker_that_cannot_go_back_is_said_so() -> None:
    step = replace(proving(Stage.PROVE), rolls_back=False)
    failed = after(step, replace(UP, outcome=Outcome(1, BAD_VERSION)))
    assert failed.state is State.FAILED
    assert failed.reason.endswith("its worker cannot roll back")


def test_a_proof_that_was_interrupted_is_tried_again_before_anything_is_concluded() -> None:
    step = after(proving(Stage.PROVE), replace(UP, boot=BootId("boot-2")))
    assert (step.state, step.stage) == (State.PENDING, Stage.PROVE)


def test_a_cancel_does_not_leave_a_node_on_an_unproven_version() -> None:
    applied = after(proving(), replace(UP, outcome=Outcome(1)))
    assert sent(applied, UP, wish=Wish.CANCEL) == Dispatch(OP, NODE, Verb.PROVE, 2)


@pytest.mark.parametrize(
    "trouble", [BUS_DOWN, Problem("no_responders", "nobody listens", retryable=True), HOPELESS]
)
def test_a_failure_of_ours_is_not_the_versions(trouble: Problem) -> None:
    step = proving(Stage.PROVE)
    for _ in range(10):
        step = after(replace(step, state=State.RUNNING), replace(UP, outcome=Outcome(1, trouble)))
        assert step.stage is Stage.PROVE
        if step.state.final:
            break
    assert step.state is State.FAILED
    assert step.reason == f"the new version is installed and was not proven: {trouble.message}"
    assert step.problem is not None
    assert step.problem.hint


def test_a_worker_that_is_lost_over_every_proof_goes_back() -> None:
    lost = replace(UP, boot=BootId("boot-2"))
    assert after(proving(Stage.PROVE, failures=8), lost).stage is Stage.PROVE
    assert after(proving(Stage.PROVE, failures=9), lost).stage is Stage.ROLL_BACK


def test_going_back_is_tried_a_few_times_and_then_left_to_a_person() -> None:
    step, tries = proving(Stage.ROLL_BACK, problem=BAD_VERSION), 0
    while not step.state.final:
        tries += 1
        step = after(replace(step, state=State.RUNNING), replace(UP, outcome=Outcome(1, BUS_DOWN)))
    assert tries == 4
    assert "the rollback failed, so the node still has this version: the bus is down" in step.reason
    assert step.problem is not None
    assert (step.problem.code, "remove the backend" in step.problem.hint) == ("proof_failed", True)


def test_going_back_to_nothing_is_not_tried_again() -> None:
    nothing = Outcome(1, Problem("rollback_failed", "no earlier version is kept"))
    step = after(proving(Stage.ROLL_BACK, problem=BAD_VERSION), replace(UP, outcome=nothing))
    assert (step.state, step.problem and step.problem.code) == (State.FAILED, "proof_failed")


@pytest.mark.parametrize("stage", [Stage.PROVE, Stage.ROLL_BACK])
@pytest.mark.parametrize(
    "seen", [replace(UP, away="asleep"), replace(UP, blocked=because(StepCause.BUS_DOWN, "no server")), UP]
)
def test_a_cancelled_proof_or_way_back_that_cannot_go_on_now_ends(stage: Stage, seen: Observation) -> None:
    waits = replace(
        proving(stage, problem=BAD_VERSION, failures=1), state=State.PENDING, wait_until=at(9).now
    )
    step, dispatch = advance(waits, seen, Wish.CANCEL, at())
    assert (step.state, dispatch) == (State.CANCELLED, None)
    assert "the node has the new version" in step.reason


def test_a_cancelled_proof_is_tried_once_and_so_is_going_back() -> None:
    def ended(step: Step, problem: Problem) -> Step:
        return after(step, replace(UP, outcome=Outcome(1, problem)), wish=Wish.CANCEL)

    assert ended(proving(Stage.PROVE), BUS_DOWN).state is State.CANCELLED
    back = ended(proving(Stage.PROVE), BAD_VERSION)
    assert sent(back, UP, wish=Wish.CANCEL) == Dispatch(OP, NODE, Verb.ROLL_BACK, 2)
    assert ended(proving(Stage.ROLL_BACK, problem=BAD_VERSION), BUS_DOWN).state is State.CANCELLED


@pytest.mark.parametrize("seen", [replace(UP, working=True), replace(FOREIGN, working=True)])
@pytest.mark.parametrize("step", [running(), proving(Stage.PROVE), proving(Stage.ROLL_BACK)])
def test_a_cancel_ends_even_if_the_worker_never_does(step: Step, seen: Observation) -> None:
    for minute in range(16):
        step = after(step, seen, seconds=60 * minute, wish=Wish.CANCEL)
    assert step.state is State.CANCELLED
    assert "its worker did not stop it in time" in step.reason


def test_a_version_that_nobody_could_start_goes_back_unless_another_node_has_run_it() -> None:
    problem = Problem(NOT_PROVEN, "not proven: there is nothing to start it with")
    step = running(Kind.UPGRADE, stage=Stage.PROVE, proves=True, rolls_back=True)
    seen = Observation(boot=BOOT, outcome=Outcome(1, problem))
    alone, _ = advance(step, seen, Wish.RUN, at())
    beside, _ = advance(step, replace(seen, proven_elsewhere=True), Wish.RUN, at())
    assert (alone.state, alone.stage) == (State.PENDING, Stage.ROLL_BACK)
    assert beside.state is State.SUCCEEDED
    assert beside.reason == "not proven: there is nothing to start it with; others have run it"
    plain, _ = advance(step, replace(seen, proof_optional=True), Wish.RUN, at())
    assert (plain.state, plain.reason) == (State.SUCCEEDED, problem.message)
    assert (concurrency.proven(beside), concurrency.proven(replace(beside, why=None))) == (False, True)
