"""A connection that breaks after it brought something: no failure, as long as it brings something."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import Problem
from remuda.ops.concurrency import retried
from remuda.ops.model import (
    FRONTENDS,
    Kind,
    Moment,
    Observation,
    Outcome,
    Stage,
    State,
    Step,
    StepPolicy,
    Wish,
)
from remuda.ops.steps import LOST, advance
from tests.support.examples import examples
from tests.unit.ops.build import NOW, running

POLICY = StepPolicy()
BROKE = Problem("registry_failed", "m.gguf broke off", retryable=True)
AWAY = Problem("registry_failed", "hub.test:443 cannot be reached", retryable=True, unanswered=1)


def began() -> Step:
    return running(Kind.INSTALL_MODEL, node=FRONTENDS)


def broke(step: Step, kept_bytes: int, problem: Problem = BROKE) -> Step:
    """The step after an attempt of it has ended so, with so much on the disk."""
    if step.state is State.PENDING:
        step = replace(step, state=State.RUNNING, attempt=step.attempt + 1, wait_until=None)
    ending = replace(problem, kept_bytes=kept_bytes)
    at = Moment(NOW, 0.0, POLICY)
    ended, _ = advance(step, Observation(outcome=Outcome(step.attempt, ending)), Wish.RUN, at)
    return ended


def test_what_came_is_said_and_the_next_attempt_is_soon() -> None:
    step = broke(began(), 4 << 20)
    assert (step.state, step.failures) == (State.PENDING, 0)
    assert step.problem is not None
    assert step.problem.message == "m.gguf broke off (4.0 MiB of it came)"
    assert step.wait_until is not None
    assert step.wait_until - NOW <= timedelta(seconds=2)


def test_failures_are_counted_from_the_last_attempt_that_brought_something() -> None:
    step = broke(broke(broke(began(), 5_000), 5_000), 0)
    assert step.failures == 2
    assert step.problem is not None
    assert (step.problem.message, step.problem.kept_bytes) == ("m.gguf broke off", 5_000)
    step = broke(step, 5_001)
    assert step.failures == 0
    for _ in range(POLICY.failures_max):
        assert step.state is State.PENDING
        step = broke(step, 5_001)
    assert step.state is State.FAILED
    assert broke(retried(step), 5_001).failures == 0, "a retry begins anew"


def test_a_source_that_is_away_in_between_takes_nothing_of_it() -> None:
    step = broke(broke(broke(began(), 5_000), 0, AWAY), 5_000)
    assert step.failures == 1
    assert broke(step, 6_000).failures == 0


def test_another_frontend_has_a_disk_of_its_own() -> None:
    step = broke(broke(began(), 5_000), 0, LOST)
    assert broke(step, 100).failures == 0


@pytest.mark.parametrize("problem", [replace(BROKE, code="content_refused"), replace(BROKE, retryable=False)])
def test_what_asking_again_hardly_changes_is_a_failure_all_the_same(problem: Problem) -> None:
    assert broke(began(), 5_000, problem).failures == 1


def test_only_what_is_applied_gets_ahead() -> None:
    assert broke(replace(began(), stage=Stage.ROLL_BACK), 5_000).failures == 1


def test_a_server_that_asks_to_wait_is_left_alone() -> None:
    step = broke(began(), 5_000, replace(BROKE, wait_s=600))
    assert step.failures == 0
    assert step.wait_until == NOW + timedelta(seconds=600)


@settings(max_examples=examples(200))
@given(st.integers(1, 40), st.data())
def test_only_bytes_bound_it(size: int, data: st.DataObject) -> None:
    """It ends after at most as many attempts as there are bytes, each with its failures; and never while it
    gets ahead."""
    step, furthest, in_vain = began(), 0, 0
    for _ in range((size + 1) * POLICY.failures_max):
        kept = data.draw(st.integers(0, size))
        step = broke(step, kept)
        in_vain = 0 if kept > furthest else in_vain + 1
        furthest = max(furthest, kept)
        assert step.failures == in_vain
        assert (step.state is State.FAILED) == (in_vain == POLICY.failures_max)
        if step.state is State.FAILED:
            return
    raise AssertionError("it goes on without getting ahead")
