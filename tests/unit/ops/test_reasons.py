"""Why steps wait, and how they ended."""

import re

import pytest

from remuda.ops.model import State
from remuda.ops.op_views import said
from remuda.ops.reasons import _WORDS, Remainder, StepCause, because, reason_in_words
from tests.unit.ops.build import NOW, a_step


def details_of(cause: StepCause) -> list[str]:
    return [f"detail {number}" for number in range(len(re.findall(r"{\d}", _WORDS[cause])))]


@pytest.mark.parametrize("cause", StepCause)
def test_each_cause_has_words_with_all_its_details(cause: StepCause) -> None:
    details = details_of(cause)
    words = str(because(cause, *details))
    assert words
    assert all(detail in words for detail in details)


def test_details_are_taken_as_they_are() -> None:
    assert str(because(StepCause.PROBLEM, "no such key: {model}")) == "no such key: {model}"


def test_what_a_cancelled_step_may_leave_behind_is_said() -> None:
    left = because(StepCause.CANCELLED, Remainder.OFFLINE, Remainder.UNPROVEN_VERSION)
    assert str(left) == (
        "cancelled; it was offline and may have finished it; "
        "the node has the new version, which was not proven"
    )


@pytest.mark.parametrize("cause", [one for one in StepCause if not details_of(one)])
def test_words_without_details_are_recognised(cause: StepCause) -> None:
    assert reason_in_words(str(because(cause))) == because(cause)


def test_words_of_earlier_releases_are_kept_as_they_are() -> None:
    assert reason_in_words("") is None
    assert reason_in_words("the disk is full") == because(StepCause.OTHER, "the disk is full")
    left = because(StepCause.CANCELLED, Remainder.TOO_SLOW)
    assert reason_in_words(str(left)) == left
    assert str(reason_in_words("cancelled; by the operator")) == "cancelled; by the operator"


def test_how_long_a_node_is_away_is_no_news_but_which_operation_is_ahead_is() -> None:
    away, ahead = StepCause.NODE_AWAY, StepCause.OTHER_OPERATION
    assert not because(away, "no heartbeat for 95 s").is_news_after(because(away, "no heartbeat for 90 s"))
    assert because(away, "its worker was stopped").is_news_after(because(away, "no heartbeat for 90 s"))
    assert because(ahead, "1f").is_news_after(because(ahead, "2f"))
    assert because(StepCause.PAUSED).is_news_after(None)


@pytest.mark.parametrize(
    "cause", [StepCause.CANCELLED, StepCause.CANCELLED_UNBEGUN, StepCause.CANCELLED_BETWEEN]
)
def test_a_cancelled_step_is_not_called_so_twice(cause: StepCause) -> None:
    step = a_step(state=State.CANCELLED, why=because(cause))
    assert said(step, NOW) == step.reason
    removed = a_step(state=State.CANCELLED, why=because(StepCause.NODE_REMOVED))
    assert said(removed, NOW) == "cancelled: the node was removed from the fleet"
