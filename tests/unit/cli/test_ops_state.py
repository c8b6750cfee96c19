"""What a reader of events knows after each of them."""

from functools import reduce

import pytest

from remuda.cli.ops_state import Picture, steps_of
from remuda.core.errors import Rejected
from remuda.core.sse import SseEvent
from tests.unit.cli.ops_views import ID, NOON, a_step, an_op, op_event, tick

OTHER = "00000000-0000-4000-8000-000000000002"


def after(*events: SseEvent, picture: Picture | None = None) -> Picture:
    return reduce(Picture.after, events, picture or Picture())


def states(picture: Picture) -> dict[str, str]:
    return {step.node_name: step.state for step in steps_of(picture.ops[ID])}


def test_a_part_changes_only_the_steps_it_has() -> None:
    whole = an_op(a_step("attic"), a_step("cellar"))
    part = an_op(a_step("cellar", "succeeded"), whole=False)

    assert states(after(op_event(whole), op_event(part))) == {"attic": "running", "cellar": "succeeded"}


def test_a_snapshot_is_all_there_is() -> None:
    gone = an_op(a_step(), id=OTHER)

    picture = after(op_event(gone), SseEvent("snapshot", "{}"), op_event(an_op(a_step())))

    assert set(picture.ops) == {ID}


def test_progress_of_the_attempt_at_work_is_shown() -> None:
    [step] = steps_of(after(op_event(an_op(a_step())), tick(percentage=40)).ops[ID])

    assert step.progress is not None
    assert step.progress.percentage == 40


@pytest.mark.parametrize(
    ("step", "attempt"), [(a_step(state="succeeded"), 1), (a_step(attempt=2), 1), (a_step("cellar"), 1)]
)
def test_late_progress_is_no_news(step: object, attempt: int) -> None:
    [shown] = steps_of(after(op_event(an_op(step)), tick(attempt=attempt)).ops[ID])  # type: ignore[arg-type]

    assert shown.progress is None


def test_an_event_of_no_interest_leaves_the_very_same_picture() -> None:
    picture = Picture(only=frozenset({ID}))

    assert after(op_event(an_op(id=OTHER)), SseEvent("ready", "{}"), tick(), picture=picture) is picture


def test_operations_are_over_when_all_have_ended() -> None:
    live, ended = an_op(a_step()), an_op(a_step(state="failed"), id=OTHER, finished_at=NOON)
    picture = after(op_event(live), op_event(ended))

    assert picture.over([OTHER])
    assert not picture.over([OTHER, ID])
    assert not picture.over(["unknown"])


def test_what_is_no_operation_is_rejected() -> None:
    with pytest.raises(Rejected):
        after(SseEvent("op", "[]"))
