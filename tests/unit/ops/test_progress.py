"""An operation as a whole."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Problem
from remuda.core.ids import NodeId
from remuda.ops.model import State, Step, Wish
from remuda.ops.progress import Status, summarise
from tests.unit.ops.build import NOW, a_step, an_operation, running

everything = st.lists(st.builds(lambda state: a_step(state=state), st.sampled_from(tuple(State))))


@given(everything, st.sampled_from(tuple(Wish)), st.floats(-1, 2))
def test_it_is_final_exactly_when_all_its_steps_are_and_whole_when_all_are_done(
    steps: list[Step], wish: Wish, progress: float
) -> None:
    summary = summarise(an_operation(wish=wish), steps, {step.node: progress for step in steps})
    over = all(step.state.final for step in steps)
    assert summary.status.final == over
    whole = all(step.state in (State.SUCCEEDED, State.SKIPPED) for step in steps)
    assert (summary.fraction == 1) == whole
    assert 0 <= summary.fraction <= 1


def test_a_failed_node_is_named_with_its_reason() -> None:
    steps = [
        a_step(node="a", state=State.SUCCEEDED),
        a_step(node="b", state=State.FAILED, reason="full"),
    ]
    summary = summarise(an_operation(), steps, {})
    assert summary.status is Status.FAILED
    assert summary.message == "1 of 2 nodes done, 1 failed. name-of-b: full"


def test_progress_is_the_mean_over_the_nodes() -> None:
    steps = [a_step(node="a", state=State.SUCCEEDED), running(node="b")]
    assert summarise(an_operation(), steps, {NodeId("b"): 0.5}).fraction == 0.75


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.PENDING])
def test_what_failed_was_cancelled_or_waits_is_as_far_as_it_came(state: State) -> None:
    assert summarise(an_operation(), [a_step(state=state)], {}).fraction == 0
    assert summarise(an_operation(), [a_step(state=state)], {NodeId("node-1"): 0.4}).fraction == 0.4


def test_an_operation_is_paused_once_nothing_is_at_work() -> None:
    paused = an_operation(wish=Wish.PAUSE)
    assert summarise(paused, [a_step()], {}).status is Status.PAUSED
    assert summarise(paused, [a_step(state=State.STOPPING)], {}).status is Status.RUNNING


def test_nodes_that_wait_for_their_next_attempt_are_not_merely_queued() -> None:
    down = Problem("install_failed", "registry:5000 cannot be reached", retryable=True)
    waits = a_step(attempt=1, failures=1, problem=down, wait_until=NOW + timedelta(seconds=30))
    summary = summarise(an_operation(), [waits], {})
    assert summary.status is Status.RETRYING
    assert summary.message.endswith(f"1 to be retried. {waits.node_name}: registry:5000 cannot be reached")
    busy = [waits, a_step(node="node-2", state=State.RUNNING)]
    assert summarise(an_operation(), busy, {}).status is Status.RUNNING


def test_an_operation_that_is_being_cancelled_is_not_said_to_be_retried() -> None:
    down = Problem("install_failed", "registry:5000 cannot be reached", retryable=True)
    waits = a_step(attempt=1, failures=1, problem=down, wait_until=NOW + timedelta(seconds=30))
    summary = summarise(an_operation(wish=Wish.CANCEL), [waits], {})
    assert summary.status is Status.CANCELLING
    assert "retried" not in summary.message
