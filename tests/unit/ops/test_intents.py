"""New wishes and those under way."""

from remuda.core.ids import NodeId
from remuda.ops.intents import asked_again, replaced, retried, same_as, wish_for
from remuda.ops.model import Kind, Source, Stage, State, Wish
from tests.unit.ops.build import NODE, NOW, OP, a_step, an_operation, running


def test_an_identical_operation_under_way_is_joined() -> None:
    assert same_as(an_operation("new"), [NODE], [(an_operation(), [NODE])]) == OP


def test_another_source_or_other_nodes_make_another_operation() -> None:
    live = [(an_operation(), [NODE])]
    assert same_as(an_operation("new", source=Source("whisper")), [NODE], live) is None
    assert same_as(an_operation("new"), [NODE, NodeId("two")], live) is None


def test_nobody_joins_what_is_being_cancelled() -> None:
    assert same_as(an_operation("new"), [NODE], [(an_operation(wish=Wish.CANCEL), [NODE])]) is None


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
