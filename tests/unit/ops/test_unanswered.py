"""A source that nobody answers at: waited for a while, which is no failure, and then no longer."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import Problem
from remuda.ops.concurrency import retried
from remuda.ops.model import FRONTENDS, Kind, Moment, Observation, Outcome, State, Step, StepPolicy, Wish
from remuda.ops.reasons import StepCause
from remuda.ops.steps import advance
from tests.support.examples import examples
from tests.unit.ops.build import NOW, a_step, running

POLICY = StepPolicy()
AWAY = Problem("registry_failed", "hub.test:443 cannot be reached", retryable=True, unanswered=1)
BUSY = Problem("registry_failed", "hub.test: not available now", retryable=True)


def began() -> Step:
    return running(Kind.INSTALL_MODEL, node=FRONTENDS)


def failed(step: Step, problem: Problem, minutes: float, fraction: float = 0.0) -> Step:
    """The step after an attempt of it has ended so."""
    at = Moment(NOW + timedelta(minutes=minutes), fraction, POLICY)
    if step.state is State.PENDING:
        step = replace(step, state=State.RUNNING, attempt=step.attempt + 1, wait_until=None)
    ended, _ = advance(step, Observation(outcome=Outcome(step.attempt, problem)), Wish.RUN, at)
    return ended


def test_it_says_since_when_and_how_long_it_is_tried() -> None:
    first = failed(began(), AWAY, 0)
    assert (first.state, first.failures) == (State.PENDING, 0)
    assert first.problem is not None
    told = "hub.test:443 cannot be reached (unreachable since 12:00 UTC, retried until 13:00 UTC)"
    assert first.problem.message == told
    assert first.why is not None
    assert first.why.cause is StepCause.RETRY

    later = failed(first, AWAY, 30)
    assert later.problem is not None
    assert (later.problem.message, later.problem.unanswered) == (told, 2)
    assert later.state is State.PENDING


def test_after_an_hour_it_is_given_up_and_a_retry_begins_anew() -> None:
    step = failed(failed(began(), AWAY, 0), AWAY, 60)
    assert step.state is State.FAILED
    assert step.problem is not None
    assert step.problem.message == "hub.test:443 cannot be reached (unreachable since 12:00 UTC)"

    again = failed(retried(step), AWAY, 90)
    assert again.state is State.PENDING
    assert again.problem is not None
    assert "since 13:30 UTC" in again.problem.message


def test_who_has_answered_in_between_may_be_away_for_as_long_again() -> None:
    step = failed(failed(began(), AWAY, 0), BUSY, 50)
    assert (step.state, step.failures) == (State.PENDING, 1)
    step = failed(step, AWAY, 70)
    assert step.state is State.PENDING
    assert step.problem is not None
    assert "since 13:10 UTC" in step.problem.message
    assert step.failures == 1, "what was heard still counts"


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=120),
)
def test_it_is_always_bounded_and_never_waits_long(course: list[tuple[bool, float, float]]) -> None:
    step, minutes, unanswered_since, heard = began(), 0.0, -1.0, 0
    for away, pause, fraction in course:
        minutes += pause
        step = failed(step, AWAY if away else BUSY, minutes, fraction)
        heard += not away
        unanswered_since = (minutes if unanswered_since < 0 else unanswered_since) if away else -1.0
        if step.state is State.FAILED:
            long_away = away and minutes - unanswered_since >= 60 - 1e-6
            assert long_away or heard >= POLICY.failures_max
            return
        assert heard < POLICY.failures_max
        assert step.wait_until is not None
        waits = step.wait_until - (NOW + timedelta(minutes=minutes))
        assert timedelta() < waits <= (POLICY.unanswered_backoff_most if away else POLICY.backoff_most)


def test_nothing_is_waited_for_that_is_not_wanted_any_more() -> None:
    step = failed(began(), AWAY, 0)
    ended, sent = advance(step, Observation(), Wish.CANCEL, Moment(NOW + timedelta(minutes=1), 0.0, POLICY))
    assert (ended.state, sent) == (State.CANCELLED, None)


def test_a_node_that_reports_another_failure_is_not_touched() -> None:
    step = failed(a_step(state=State.RUNNING, attempt=1), BUSY, 0)
    assert step.problem == BUSY
