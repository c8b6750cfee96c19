"""What holds of `advance` whatever is seen, in whatever order."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import Problem
from remuda.core.ids import BootId
from remuda.ops.model import Kind, Moment, Observation, Outcome, State, Step, StepPolicy, Verb, Wish
from remuda.ops.steps import advance
from tests.support.examples import examples
from tests.unit.ops.build import NOW, PINNED, a_step

problems = st.sampled_from(
    (None, Problem("install_failed", "no such image", retryable=True), Problem("refused", "not allowed"))
)
observations = st.builds(
    Observation,
    exists=st.sampled_from((True,) * 20 + (False,)),
    away=st.sampled_from(("", "", "", "asleep")),
    boot=st.sampled_from((BootId("a"), BootId("a"), BootId("b"))),
    reports=st.booleans(),
    installed=st.sampled_from((None, True, False, False)),
    digest=st.sampled_from(("", PINNED)),
    working=st.booleans(),
    outcome=st.one_of(st.none(), st.builds(Outcome, attempt=st.integers(1, 12), ending=problems)),
    blocked=st.sampled_from(("", "", "", "others go first")),
)
steps = st.builds(
    a_step,
    kind=st.sampled_from(Kind),
    digest=st.sampled_from(("", PINNED)),
    proves=st.booleans(),
    rolls_back=st.booleans(),
)
wishes = st.sampled_from((Wish.RUN, Wish.RUN, Wish.RUN, Wish.PAUSE, Wish.CANCEL))
moments = st.tuples(st.sampled_from((0, 5, 31, 61, 901, 9000)), st.floats(0, 1))
History = list[tuple[Observation, Wish, tuple[int, float]]]
history = st.lists(st.tuples(observations, wishes, moments), max_size=40)


@settings(max_examples=examples(600))
@given(steps, history)
def test_every_history_keeps_the_rules(step: Step, history: History) -> None:
    now = NOW
    for seen, wish, (wait_s, fraction) in history:
        now += timedelta(seconds=wait_s)
        moment = Moment(now, fraction)
        after, dispatch = advance(step, seen, wish, moment)
        if step.state.final:
            assert (after, dispatch) == (step, None), "what is final stays as it is"
        assert after.attempt in (step.attempt, step.attempt + 1), "attempts only grow, one by one"
        assert after.failures <= StepPolicy().failures_max
        if dispatch is not None:
            assert dispatch.attempt == after.attempt, "what is sent names the attempt it belongs to"
            begun = after.state is State.RUNNING and after.attempt == step.attempt + 1
            assert begun or (dispatch.verb is Verb.CANCEL and after.state is State.STOPPING)
        if after.state in (State.RUNNING, State.STOPPING):
            assert after.boot is not None
            assert (after.wait_until is None) == bool(seen.away), "silence is bounded while the node is there"
        if seen.working and seen.outcome is None and seen.boot == step.boot and seen.exists:
            assert after.failures <= step.failures, "still at work is no failure"
        step = after


@given(steps, history, observations, wishes)
def test_the_same_sighting_twice_changes_nothing_the_second_time(
    step: Step, history: History, seen: Observation, wish: Wish
) -> None:
    now = NOW
    for earlier, what, (wait_s, fraction) in history:
        now += timedelta(seconds=wait_s)
        step, _ = advance(step, earlier, what, Moment(now, fraction))
    moment = Moment(now, 0.5)
    once, _ = advance(step, seen, wish, moment)
    while once != step:  # A step may take several turns to settle, but no turn is taken for ever.
        step, (once, dispatch) = once, advance(once, seen, wish, moment)
        assert dispatch is None or once != step
    assert advance(once, seen, wish, moment) == (once, None)


@given(steps, history, st.floats(0, 1))
def test_once_the_world_is_kind_every_step_ends(step: Step, history: History, fraction: float) -> None:
    now = NOW
    for seen, wish, (wait_s, _) in history:
        now += timedelta(seconds=wait_s)
        step, _ = advance(step, seen, wish, Moment(now, fraction))
    for _ in range(12):
        now += timedelta(minutes=15)
        outcome = Outcome(step.attempt) if step.state is State.RUNNING else None
        seen = Observation(boot=BootId("b"), outcome=outcome)
        step, _ = advance(step, seen, Wish.RUN, Moment(now, fraction))
    assert step.state.final
