"""What a worker still has in hand for another operation on the same backend."""

from remuda.ops.model import Kind, OpId, State
from remuda.wire.nodes import Work
from tests.unit.ops.build import OP, a_step, an_operation
from tests.unit.ops.test_reconciler_plan import a_pass, a_view

LATE = Work(op_id="an-older-operation", attempt=1, kind="install", backend="llama-cpp")
REMOVAL = an_operation(kind=Kind.REMOVE)


def test_a_removal_waits_for_an_install_that_arrived_after_it_was_cancelled() -> None:
    decided = a_pass(a_step(Kind.REMOVE), views=(a_view(work=(LATE,)),), operations=(REMOVAL,))
    ((_, after),) = decided.changes
    assert after.state is State.PENDING
    assert after.reason == "its worker is still busy with operation an-older-operation"
    assert not decided.dispatches


def test_work_on_another_backend_holds_nobody_up() -> None:
    other = LATE.model_copy(update={"backend": "whisper"})
    decided = a_pass(a_step(), views=(a_view(work=(other,)),))
    assert len(decided.dispatches) == 1


def test_its_own_earlier_attempt_holds_a_step_not_up() -> None:
    own = LATE.model_copy(update={"op_id": OpId(OP)})
    decided = a_pass(a_step(attempt=1), views=(a_view(work=(own,)),))
    assert len(decided.dispatches) == 1
