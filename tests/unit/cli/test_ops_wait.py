"""How a command ends that waits for operations."""

import json

import pytest

from remuda.cli.commands import Asked
from remuda.cli.exits import Exit
from remuda.cli.ops_wait import Waiting, see_through
from remuda.wire.operations import OpView, ProblemView
from tests.unit.cli.ops_views import ID, NOON, a_step, an_op

ASKED, JSON = Asked(url="http://127.0.0.1:1"), Asked(url="http://127.0.0.1:1", as_json=True)


def ended(state: str, status: str, **facts: str) -> OpView:
    return an_op(a_step(state=state, reason="as it is"), status=status, finished_at=NOON, **facts)


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (ended("succeeded", "succeeded"), Exit.DONE),
        (ended("skipped", "succeeded"), Exit.DONE),
        (ended("failed", "failed"), Exit.NOT_EVERYWHERE),
        (ended("cancelled", "cancelled"), Exit.NOT_EVERYWHERE),
    ],
)
def test_the_exit_code_says_whether_a_node_failed(op: OpView, code: Exit) -> None:
    assert see_through(ASKED, [op], Waiting()) is code


def test_a_failure_is_told_with_node_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    see_through(ASKED, [ended("failed", "failed", error="attic: the disk is full")], Waiting())

    told = capsys.readouterr()
    assert told.out == "install echo: 0 of 1 node done, 1 failed\n  attic: failed: as it is\n"
    assert told.err == (
        "error: install echo: attic: the disk is full\n"
        "hint: try those nodes again with: remuda ops retry 3f2a1b0c\n"
    )


def test_trying_again_is_suggested_at_once_only_where_that_can_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = ProblemView(code="not_found", message="no such image", retryable=False)
    step = a_step(state="failed", problem=unknown)
    see_through(ASKED, [an_op(step, status="failed", finished_at=NOON)], Waiting())

    hint = "hint: fix the cause first; then try those nodes again with: remuda ops retry 3f2a1b0c\n"
    assert hint in capsys.readouterr().err


def test_a_load_that_failed_is_asked_for_anew(capsys: pytest.CaptureFixture[str]) -> None:
    see_through(ASKED, [ended("failed", "failed", kind="load", model="qwen")], Waiting())

    assert "hint: try it again with: remuda models load qwen\n" in capsys.readouterr().err


def test_one_that_only_begins_says_how_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert see_through(ASKED, [an_op(a_step())], Waiting(wait=False)) is Exit.DONE

    assert capsys.readouterr().out == (
        "install echo: operation 3f2a1b0c; see it with: remuda ops watch 3f2a1b0c\n"
    )


def test_programs_get_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    see_through(JSON, [ended("succeeded", "succeeded")], Waiting())
    assert json.loads(capsys.readouterr().out)["id"] == ID

    see_through(JSON, [], Waiting(), together=True)
    assert json.loads(capsys.readouterr().out) == {"operations": []}
