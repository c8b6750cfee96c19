"""New wishes and those under way."""

import pytest

from remuda.ops.intents import (
    asked_again,
    outdated,
    replaced,
    retried,
    same_as,
    wish_for,
    wished_again,
    woken,
)
from remuda.ops.model import Goal, Kind, Source, Stage, State, Step, Wish
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
