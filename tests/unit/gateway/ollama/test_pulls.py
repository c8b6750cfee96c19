"""What Ollama's clients are told of an install that did not go well at once."""

from remuda.gateway.ollama.pulls import line_of, tried_in_vain
from remuda.wire.operations import OpView, ProblemView, RollOutView, StepView
from tests.support.clocks import START

UNREACHED = ProblemView(code="registry_failed", message="hub.test cannot be reached: no route to host")


def op(**members: object) -> OpView:
    step = StepView.model_validate({"node_id": "n", **members})
    return OpView(id="op-1", roll_out=RollOutView(at_once=1), asked_at=START, steps=(step,))


def test_an_attempt_that_failed_is_told_while_the_next_one_is_waited_for() -> None:
    waiting = op(state="pending", reason="waiting to retry", problem=UNREACHED)
    assert line_of(waiting).status == f"{UNREACHED.message}; it is tried again"
    failed = tried_in_vain(waiting)
    assert failed is not None
    assert failed.message == UNREACHED.message
    assert "remuda ops show op-1" in failed.hint


def test_what_is_under_way_or_waits_for_others_has_not_failed() -> None:
    assert tried_in_vain(op(state="running", problem=UNREACHED)) is None
    waits = op(state="pending", reason="waiting for other models that are being installed")
    assert tried_in_vain(waits) is None
    assert line_of(waits).status == "waiting for other models that are being installed"
