"""How a command ends that waits for operations."""

import json
import sys

import pytest

from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.cli.ops_state import Picture
from remuda.cli.ops_wait import Waiting, wait_and_report
from remuda.cli.ops_watch import OperationLines, WithoutOutcomes
from remuda.wire.operations import OpView, ProblemView
from tests.support.clocks import HandClock
from tests.unit.cli.ops_views import ID, NOON, a_step, an_op, op_event

ASKED, JSON = ClientOptions(url="http://127.0.0.1:1"), ClientOptions(url="http://127.0.0.1:1", as_json=True)


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
    assert wait_and_report(ASKED, [op], Waiting()) is code


def test_a_failure_is_told_with_node_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    wait_and_report(ASKED, [ended("failed", "failed", error="attic: the disk is full")], Waiting())

    told = capsys.readouterr()
    assert told.out == "install echo: 0 of 1 node done, 1 failed\n  attic: failed: as it is\n"
    assert told.err == (
        "error: install echo: failed on attic\nhint: try those nodes again with: remuda ops retry 3f2a1b0c\n"
    )


def test_a_failure_is_told_once_with_its_node(capsys: pytest.CaptureFixture[str]) -> None:
    why = "the new version does not start: exit code 1"
    problem = ProblemView(code="proof_failed", message=why, retryable=True)
    back = f"{why}; the node is back on the version before"
    op = an_op(
        a_step(state="failed", stage="roll_back", reason=back, problem=problem),
        a_step("barn", state="cancelled", reason=f"the roll-out stopped at attic: {back}"),
        kind="upgrade",
        status="failed",
        error=f"attic: {back}",
        finished_at=NOON,
    )
    live = OperationLines(sys.stderr, HandClock())
    going_back = a_step(state="pending", stage="roll_back", problem=problem)
    for steps in ([a_step(), a_step("barn", state="pending")], [going_back, a_step("barn", state="pending")]):
        told = an_op(*steps, kind="upgrade")
        WithoutOutcomes(live).show(Picture({ID: told}), op_event(told))
    WithoutOutcomes(live).show(Picture({ID: op}), op_event(op))
    wait_and_report(ASKED, [op], Waiting())

    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "upgrade echo: 0 of 2 nodes done, 1 failed, 1 cancelled",
        f"  attic: failed: {back}",
        "  barn: cancelled: the roll-out stopped at attic",
    ]
    assert why not in said.err
    assert "upgrade echo on attic: rolling back" in said.err
    assert "error: upgrade echo: failed on attic" in said.err


def test_programs_read_the_failure_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    wait_and_report(JSON, [ended("failed", "failed", error="attic: the disk is full")], Waiting())
    assert "attic: the disk is full" in json.loads(capsys.readouterr().err)["error"]["message"]


def test_trying_again_is_suggested_at_once_only_where_that_can_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = ProblemView(code="not_found", message="no such image", retryable=False)
    step = a_step(state="failed", problem=unknown)
    wait_and_report(ASKED, [an_op(step, status="failed", finished_at=NOON)], Waiting())

    hint = "hint: fix the cause first; then try those nodes again with: remuda ops retry 3f2a1b0c\n"
    assert hint in capsys.readouterr().err

    broken = ProblemView(code="proof_failed", message="the new version does not start", retryable=True)
    step = a_step(state="failed", problem=broken)
    wait_and_report(ASKED, [an_op(step, status="failed", finished_at=NOON)], Waiting())
    said = capsys.readouterr().err
    assert ("the build has to be fixed first" in said, "ops retry" in said) == (True, False)


def an_install(state: str, status: str, problem: ProblemView | None = None) -> OpView:
    step = a_step("frontends", state=state, problem=problem).model_copy(update={"node_id": "frontends"})
    error = f"{problem.message}" if problem else ""
    facts = {"kind": "install_model", "model": "tiny", "selection": "frontends", "error": error}
    return an_op(step, status=status, finished_at=NOON, **facts)


def test_what_frontends_do_by_themselves_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    begun = an_install("running", "running").model_copy(update={"finished_at": None})
    full = ProblemView(code="forbidden", message="it may not be read", hint="log in")
    for op in (an_install("succeeded", "succeeded"), an_install("failed", "failed", full)):
        live = WithoutOutcomes(OperationLines(sys.stderr, HandClock(), outcome_follows=True))
        live.show(Picture({ID: begun}), op_event(begun))
        live.show(Picture({ID: op}), op_event(op))
        wait_and_report(ASKED, [op], Waiting())

    said = capsys.readouterr()
    assert said.out == "install model tiny: done\n"
    assert said.err.splitlines() == [
        "install model tiny: at work",
        "install model tiny: at work",
        "error: install model tiny: it may not be read",
        "hint: log in; then try it again with: remuda ops retry 3f2a1b0c",
    ]


def test_a_wrong_source_is_not_to_be_retried(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ProblemView(code="not_found", message="tiny 9 has no wheel", hint="there are wheels of 0.1")
    wait_and_report(ASKED, [an_install("failed", "failed", missing)], Waiting())

    hint = "hint: there are wheels of 0.1; then install it anew: remuda models install SOURCE|NAME\n"
    assert capsys.readouterr().err == f"error: install model tiny: tiny 9 has no wheel\n{hint}"


def test_a_load_that_failed_is_asked_for_anew(capsys: pytest.CaptureFixture[str]) -> None:
    wait_and_report(ASKED, [ended("failed", "failed", kind="load", model="qwen")], Waiting())

    assert "hint: try it again with: remuda models load qwen\n" in capsys.readouterr().err


def test_one_that_only_begins_says_how_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert wait_and_report(ASKED, [an_op(a_step())], Waiting(wait=False)) is Exit.DONE

    assert capsys.readouterr().out == (
        "install echo: operation 3f2a1b0c; see it with: remuda ops watch 3f2a1b0c\n"
    )


def test_programs_get_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    wait_and_report(JSON, [ended("succeeded", "succeeded")], Waiting())
    assert json.loads(capsys.readouterr().out)["id"] == ID

    wait_and_report(JSON, [], Waiting(), together=True)
    assert json.loads(capsys.readouterr().out) == {"operations": []}
