"""New wishes and those under way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.ops.concurrency import (
    asked_again,
    blocked,
    halt,
    halted,
    outdated,
    replaced,
    retried,
    same_as,
    wish_for,
    wished_again,
    woken,
)
from remuda.ops.model import Goal, Kind, RollOut, Source, Stage, State, Step, Wish
from remuda.ops.reasons import StepCause, because
from tests.unit.ops.build import NODE, NOW, OP, PINNED, a_step, an_operation, running

OTHER = "sha256:" + "b" * 64
TWO = "two"


def test_an_identical_operation_under_way_is_joined() -> None:
    assert same_as(an_operation("new"), [a_step(op="new")], [(an_operation(), [a_step()])]) == OP


def test_another_source_or_other_nodes_make_another_operation() -> None:
    live = [(an_operation(), [a_step()])]
    assert same_as(an_operation("new", source=Source("whisper")), [a_step(op="new")], live) is None
    both = [a_step(op="new"), a_step(op="new", node=TWO)]
    assert same_as(an_operation("new"), both, live) is None


def test_nobody_joins_what_is_being_cancelled() -> None:
    live = [(an_operation(wish=Wish.CANCEL), [a_step()])]
    assert same_as(an_operation("new"), [a_step(op="new")], live) is None


# Nodes that are done.


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.REMOVE])
def test_a_node_that_is_done_is_looked_at_again(kind: Kind) -> None:
    done = a_step(kind, digest=PINNED, state=State.SUCCEEDED, attempt=1, reason="it is installed")
    again = wished_again(done, a_step(kind, op="new"))
    assert (again.state, again.attempt, again.reason) == (State.PENDING, 1, "")
    assert (
        same_as(an_operation("new", kind), [a_step(kind, op="new")], [(an_operation(kind=kind), [done])])
        == OP
    )


@pytest.mark.parametrize(("digest", "ours"), [(PINNED, True), ("", True), (PINNED, False)])
def test_an_upgrade_that_is_done_is_looked_at_by_an_operation_of_its_own_where_that_disturbs_nobody(
    digest: str, ours: bool
) -> None:
    done = a_step(Kind.UPGRADE, digest=digest, state=State.SUCCEEDED, attempt=1, rolls_back=ours)
    live = [(an_operation(kind=Kind.UPGRADE), [done])]
    again = a_step(Kind.UPGRADE, op="new", digest=digest)
    joined = same_as(an_operation("new", Kind.UPGRADE), [again], live)
    assert joined == (None if digest and ours else OP)
    assert wished_again(done, again) is done


def test_what_a_peer_has_to_replace_is_not_fetched_again_unless_it_has_something_else_since() -> None:
    replaces = Goal(("llama-cpp",), replaces=True)
    done = a_step(state=State.SUCCEEDED, attempt=1, goal=replaces)
    assert wished_again(done, a_step(op="new")) is done
    assert wished_again(done, a_step(op="new", goal=replaces)).state is State.PENDING
    kept = a_step(state=State.SUCCEEDED, attempt=1)
    live = [(an_operation(), [kept])]
    assert same_as(an_operation("new"), [a_step(op="new", goal=replaces)], live) is None


# A reference that has moved.


def pinned(digest: str, op: str = "new", state: State = State.PENDING) -> list[Step]:
    """On one node it is in some state, on the other it waits."""
    return [a_step(op=op, digest=digest, state=state), a_step(op=op, node=TWO, digest=digest)]


def test_a_wish_for_other_bytes_is_another_one() -> None:
    live = [(an_operation(), pinned(PINNED, OP, state=State.SUCCEEDED))]
    assert same_as(an_operation("new"), pinned(OTHER), live) is None
    assert same_as(an_operation("new"), pinned(PINNED), live) == OP
    assert same_as(an_operation("new"), pinned(""), live) == OP, "the registry was not asked"


def test_a_wish_joins_one_without_a_pin_unless_that_has_fetched_something_already() -> None:
    waits = [(an_operation(), pinned("", OP))]
    assert same_as(an_operation("new"), pinned(PINNED), waits) == OP
    done = [(an_operation(), pinned("", OP, state=State.SUCCEEDED))]
    assert same_as(an_operation("new"), pinned(PINNED), done) is None


@pytest.mark.parametrize("wish", Wish)
def test_nobody_joins_an_operation_after_which_other_bytes_were_wanted(wish: Wish) -> None:
    """Where the newer one is done, the older one would not be carried out again."""
    older = (an_operation(), pinned(PINNED, OP, state=State.SUCCEEDED))
    newer = (an_operation("newer", wish=wish), pinned(OTHER, "newer", state=State.SUCCEEDED))
    assert same_as(an_operation("new"), pinned(PINNED), [older, newer]) is None
    for again in (pinned(OTHER), pinned("")):
        found = same_as(an_operation("new"), again, [older, newer])
        assert found == ("newer" if wish is Wish.RUN else None)


def test_what_waits_to_fetch_other_bytes_is_replaced() -> None:
    [gone] = outdated(pinned(OTHER), pinned(PINNED, OP, state=State.SUCCEEDED))
    assert (gone.op, gone.node, gone.replaced_by) == (OP, TWO, "new")
    assert wish_for(gone, an_operation()) is Wish.CANCEL


@pytest.mark.parametrize(
    "step",
    [
        a_step(digest=PINNED, node="elsewhere"),
        a_step(digest=OTHER),
        a_step(),
        a_step(Kind.UPGRADE, digest=PINNED),
        a_step(digest=PINNED, stage=Stage.ROLL_BACK),
        a_step(digest=PINNED, state=State.RUNNING),
        a_step(digest=PINNED, state=State.FAILED),
    ],
)
def test_nothing_else_is_replaced_by_a_wish_for_other_bytes(step: Step) -> None:
    assert outdated(pinned(OTHER), [step]) == []
    assert outdated(pinned(""), [step]) == []


def test_a_wish_that_a_node_cannot_fulfil_replaces_nothing_there() -> None:
    assert outdated([a_step(op="new", digest=OTHER, state=State.SKIPPED)], [a_step(digest=PINNED)]) == []


def test_what_is_replaced_is_not_tried_again() -> None:
    waits = a_step(digest=PINNED, wait_until=NOW, failures=2)
    assert len(woken([waits], pinned(OTHER))) == 1
    assert woken(outdated(pinned(OTHER), [waits]), pinned(OTHER)) == []


# Opposites.


def test_the_newest_wish_replaces_its_opposite_on_the_same_node() -> None:
    [gone] = replaced([a_step(Kind.REMOVE, op="new")], [running(), running(node="other")])
    assert (gone.op, gone.node, gone.replaced_by) == (OP, NODE, "new")
    assert wish_for(gone, an_operation()) is Wish.CANCEL


def test_an_upgrade_does_not_replace_an_install() -> None:
    assert replaced([a_step(Kind.UPGRADE, op="new")], [running()]) == []


def test_what_is_over_is_not_replaced() -> None:
    assert replaced([a_step(Kind.REMOVE, op="new")], [a_step(state=State.FAILED)]) == []


def test_a_backend_is_recognised_under_any_of_its_names() -> None:
    concrete = a_step(Kind.REMOVE, op="new")
    meta = running(goal=concrete.goal.__class__(("llama-cpp",)))
    assert len(replaced([concrete], [meta])) == 1


def test_a_retry_begins_with_a_clean_count() -> None:
    step = retried(a_step(state=State.FAILED, failures=10, attempt=10, reason="no such image"))
    assert (step.state, step.failures, step.attempt, step.reason) == (State.PENDING, 0, 10, "")


def test_a_retry_after_going_back_applies_the_upgrade_again() -> None:
    back = a_step(Kind.UPGRADE, state=State.FAILED, stage=Stage.ROLL_BACK, expires=NOW)
    assert (retried(back).stage, retried(back).expires) == (Stage.APPLY, None)


def test_a_step_in_backoff_that_is_asked_for_again_is_tried_now() -> None:
    waits = a_step(failures=4, attempt=4, wait_until=NOW, stage=Stage.ROLL_BACK)
    again = asked_again(waits)
    assert (again.failures, again.wait_until) == (0, None)
    assert (again.attempt, again.stage) == (4, Stage.ROLL_BACK), "what it is in the middle of goes on"


def test_asking_again_leaves_what_is_at_work_or_done() -> None:
    for step in (running(), a_step(state=State.SUCCEEDED), a_step(state=State.SKIPPED), a_step()):
        assert asked_again(step) == step


def test_asking_again_takes_back_what_replaced_it() -> None:
    assert asked_again(running(replaced_by=OP)) == running()


def test_only_what_ended_badly_is_retried() -> None:
    assert retried(running()) == running()


ROLLING = RollOut(at_once=2, canary=True, proves=True)


def nodes(*steps: Step) -> set[str]:
    return {step.node for step in steps}


def test_all_nodes_of_an_operation_go_at_once_within_its_bound() -> None:
    steps = [a_step(node=f"n{number}") for number in range(5)]
    waits = blocked([an_operation(roll_out=RollOut(at_once=3))], steps, away=())
    assert {node for _, node in waits} == {"n3", "n4"}


def test_a_later_operation_waits_for_the_earlier_one_on_the_same_node_and_backend() -> None:
    first, second = an_operation("a"), an_operation("b", asked_s=1)
    waits = blocked([second, first], [a_step(op="a"), a_step(op="b"), a_step(op="b", node="other")], away=())
    assert waits == {("b", "node-1"): because(StepCause.OTHER_OPERATION_HERE, "a")}


def test_an_earlier_operation_that_is_tried_again_waits_for_a_later_one_at_work() -> None:
    again, at_work = a_step(op="a", attempt=3), running(Kind.REMOVE, op="b")
    waits = blocked([an_operation("a"), an_operation("b", asked_s=1)], [again, at_work], away=())
    assert waits == {("a", "node-1"): because(StepCause.OTHER_OPERATION_HERE, "b")}


def test_an_operation_that_is_over_on_a_node_is_in_nobodys_way() -> None:
    done = a_step(op="a", state=State.SUCCEEDED)
    assert blocked([an_operation("a"), an_operation("b", asked_s=1)], [done, a_step(op="b")], away=()) == {}


def test_with_a_canary_one_node_goes_first() -> None:
    steps = [a_step(node=f"n{number}") for number in range(4)]
    waits = blocked([an_operation(roll_out=ROLLING)], steps, away=())
    assert len(waits) == 3
    assert set(waits.values()) == {because(StepCause.CANARY)}


def test_a_node_that_has_nothing_to_start_the_new_version_with_does_not_go_first() -> None:
    steps = [a_step(node=f"n{number}") for number in range(3)]
    operations = [an_operation(roll_out=ROLLING)]
    waits = blocked(operations, steps, away=(), unprovable={steps[0].key, steps[2].key})
    assert {node for _, node in waits} == {"n0", "n2"}
    waits = blocked(operations, steps, away=(), unprovable={step.key for step in steps})
    assert {node for _, node in waits} == {"n1", "n2"}, "unless all are so"


def test_the_canary_is_not_joined_by_others_between_its_stages() -> None:
    between = a_step(node="n0", attempt=1)
    waits = blocked([an_operation(roll_out=ROLLING)], [between, a_step(node="n1")], away=())
    assert {node for _, node in waits} == {"n1"}


def test_after_the_canary_batches_follow() -> None:
    done = a_step(node="n0", state=State.SUCCEEDED, attempt=2)
    fresh = [a_step(node=f"n{number}") for number in range(1, 5)]
    waits = blocked([an_operation(roll_out=ROLLING)], [done, *fresh], away=())
    assert {node for _, node in waits} == {"n3", "n4"}


def test_a_node_that_had_it_already_proves_nothing() -> None:
    had = a_step(node="n0", state=State.SUCCEEDED)
    waits = blocked([an_operation(roll_out=ROLLING)], [had, a_step(node="n1"), a_step(node="n2")], away=())
    assert len(waits) == 1


def test_nodes_that_are_away_hold_nobody_up() -> None:
    gone = [running(node=f"gone{number}") for number in range(3)]
    here = [a_step(node="here1"), a_step(node="here2")]
    away = {step.node for step in gone}
    assert blocked([an_operation(roll_out=RollOut(at_once=2))], [*gone, *here], away) == {}


def test_a_node_that_had_the_new_version_already_is_no_canary() -> None:
    had = a_step(Kind.UPGRADE, node="n0", state=State.SUCCEEDED, attempt=1, proves=True)
    others = [a_step(Kind.UPGRADE, node=f"n{number}", proves=True) for number in (1, 2)]
    waits = blocked([an_operation(roll_out=ROLLING)], [had, *others], away=())
    assert waits == {others[1].key: because(StepCause.CANARY)}


def test_the_canary_is_chosen_among_nodes_that_are_there() -> None:
    steps = [a_step(node=f"n{number}") for number in range(3)]
    waits = blocked([an_operation(roll_out=ROLLING)], steps, away={NodeId("n0")})
    assert {node for _, node in waits} == {"n2"}


@pytest.mark.parametrize(
    "canary",
    [
        running(node="n0"),
        a_step(node="n0", attempt=1),
        a_step(Kind.UPGRADE, node="n0", attempt=1, stage=Stage.PROVE),
    ],
    ids=["at work", "to be tried again", "between its stages"],
)
def test_a_canary_that_is_away_is_waited_for_until_it_is_lost(canary: Step) -> None:
    operation, steps = an_operation(roll_out=ROLLING), [canary, a_step(node="n1"), a_step(node="n2")]
    waits = blocked([operation], steps, away={canary.node})
    assert {node for _, node in waits} == {"n1", "n2"}
    assert set(waits.values()) == {because(StepCause.CANARY_AWAY, "name-of-n0")}
    waits = blocked([operation], steps, away={canary.node}, lost={canary.key})
    assert {node for _, node in waits} == {"n2"}, "another goes first"


def test_a_canary_that_returns_waits_for_the_one_in_its_place() -> None:
    again, in_its_place = a_step(node="n0", attempt=1), running(node="n1")
    steps = [again, in_its_place, a_step(node="n2")]
    waits = blocked([an_operation(roll_out=ROLLING)], steps, away=())
    assert {node for _, node in waits} == {"n0", "n2"}


def test_after_the_canary_a_node_that_is_away_takes_no_place_in_a_batch() -> None:
    done = a_step(node="n0", state=State.SUCCEEDED, attempt=2)
    gone = [running(node="n1"), a_step(node="n2", attempt=1)]
    fresh = [a_step(node=f"n{number}") for number in range(3, 6)]
    waits = blocked(
        [an_operation(roll_out=ROLLING)], [done, *gone, *fresh], away={NodeId("n1"), NodeId("n2")}
    )
    assert {node for _, node in waits} == {"n5"}


def test_a_failure_stops_a_roll_out_that_proves_itself() -> None:
    failed = a_step(Kind.UPGRADE, node="n0", state=State.FAILED, reason="it does not start")
    operation = an_operation(kind=Kind.UPGRADE, roll_out=ROLLING)
    why = halted(operation, [failed])
    assert str(why) == "the roll-out stopped at name-of-n0: it does not start"
    assert why is not None
    stopped = halt(a_step(Kind.UPGRADE, node="n1"), why)
    assert (stopped.state, stopped.why) == (State.CANCELLED, why)
    assert halt(running(), why).state is State.RUNNING, "what has begun is seen through"


def test_a_failure_stops_nothing_where_all_go_at_once() -> None:
    assert halted(an_operation(), [a_step(state=State.FAILED)]) is None


states = st.sampled_from(tuple(State))
fleets = st.lists(
    st.builds(
        lambda number, state, attempt: a_step(node=f"n{number:02}", state=state, attempt=attempt),
        st.integers(0, 30),
        states,
        st.integers(0, 3),
    ),
    unique_by=lambda step: step.node,
)


@given(fleets, st.integers(1, 5), st.booleans(), st.sets(st.integers(0, 30)))
def test_no_more_begin_than_may_be_at_work(
    steps: list[Step], at_once: int, canary: bool, away_numbers: set[int]
) -> None:
    away = {NodeId(f"n{number:02}") for number in away_numbers}
    operation = an_operation(roll_out=RollOut(at_once, canary))
    waits = blocked([operation], steps, away)
    fresh = [s for s in steps if s.state is State.PENDING and not s.attempt and s.node not in away]
    begin = [step for step in fresh if step.key not in waits]
    assert len(begin) <= at_once
    idle = not any(step.state in (State.RUNNING, State.STOPPING) for step in steps)
    nothing_begun = idle and not any(step.state is State.PENDING and step.attempt for step in steps)
    assert not (fresh and nothing_begun and not begin), "somebody always goes"


@given(fleets, st.integers(1, 5), st.booleans(), st.sets(st.integers(0, 30)))
def test_nodes_that_are_lost_hold_nobody_up(
    steps: list[Step], at_once: int, canary: bool, lost_numbers: set[int]
) -> None:
    lost = [step for step in steps if int(step.node[1:]) in lost_numbers]
    operation, away = an_operation(roll_out=RollOut(at_once, canary)), {step.node for step in lost}
    waits = blocked([operation], steps, away, {step.key for step in lost})
    without = [step for step in steps if step not in lost or step.state.final]
    assert waits == blocked([operation], without, away=()), "it is as if only the others were meant"


@given(fleets, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_no_canary_begins_beside_another_unless_that_is_lost(
    steps: list[Step], away_numbers: set[int], lost_numbers: set[int]
) -> None:
    away = {NodeId(f"n{number:02}") for number in away_numbers | lost_numbers}
    lost = {step.key for step in steps if int(step.node[1:]) in lost_numbers}
    waits = blocked([an_operation(roll_out=RollOut(5, canary=True))], steps, away, lost)
    if any(step.state is State.SUCCEEDED and step.attempt for step in steps):
        return
    pending = [step for step in steps if step.state is State.PENDING and step.node not in away]
    at_work = [s for s in steps if s.state in (State.RUNNING, State.STOPPING) and s.key not in lost]
    begin = [step for step in pending if step.key not in waits]
    assert len(begin) + len(at_work) <= max(1, len(at_work))


def test_between_two_stages_nobody_comes_in_between_and_no_second_canary_begins() -> None:
    proving = a_step(Kind.UPGRADE, op="b", attempt=1, stage=Stage.PROVE)
    fresh = a_step(Kind.UPGRADE, op="b", node="n1")
    rolling = an_operation("b", Kind.UPGRADE, asked_s=1, roll_out=ROLLING)
    waits = blocked([an_operation("a"), rolling], [a_step(op="a"), proving, fresh], away=())
    assert set(waits) == {("a", NODE), ("b", "n1")}


def test_of_those_that_are_tried_again_one_goes_first_as_canary() -> None:
    again = [a_step(node=node, attempt=1) for node in ("n1", "n2")]
    waits = blocked([an_operation(roll_out=ROLLING)], [*again, a_step(node="n3")], away=())
    assert set(waits) == {(OP, "n2"), (OP, "n3")}


def test_a_canary_that_waits_for_another_operation_is_not_replaced() -> None:
    at_work = a_step(op="a", node="n1", state=State.RUNNING, attempt=1)
    again = a_step(op="b", node="n1", attempt=1)
    rolling = an_operation("b", asked_s=1, roll_out=ROLLING)
    waits = blocked([an_operation("a"), rolling], [at_work, again, a_step(op="b", node="n2")], away=())
    assert set(waits) == {("b", "n1"), ("b", "n2")}
