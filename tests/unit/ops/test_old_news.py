"""What is heard late, or was true before something else was done, decides nothing."""

from dataclasses import replace
from datetime import timedelta

from remuda.core.ids import BootId
from remuda.fleet.verdicts import ObservedNode
from remuda.ops.model import Kind, Observation, State, Step, Wish
from remuda.ops.planning import observe
from remuda.ops.ports import OpenRequest
from remuda.ops.reasons import StepCause, because
from remuda.ops.steps import advance
from remuda.wire.nodes import InstalledArtifact, Report
from tests.unit.ops.build import BOOT, NOW, a_step, at, running
from tests.unit.ops.test_reconciler_plan import a_request, a_view

UP = Observation(boot=BOOT, installed=False)
FOREIGN = replace(UP, reports=False, installed=None)
THERE = Report(boot_id=BOOT, sequence=1, installed=(InstalledArtifact(name="cpu-llama-cpp"),))


def heard(seconds: float) -> ObservedNode:
    """A node that reported then that the backend is there."""
    view = a_view(report=THERE)
    who = replace(view.standing.node, last_heartbeat=NOW + timedelta(seconds=seconds))
    return replace(view, standing=replace(view.standing, node=who))


def after(step: Step, seen: Observation, seconds: float = 0) -> Step:
    return advance(step, seen, Wish.RUN, at(seconds))[0]


def test_a_removal_that_waits_for_an_install_is_not_done_because_nothing_is_there_yet() -> None:
    waiting = after(a_step(Kind.REMOVE), replace(UP, blocked=because(StepCause.OTHER_OPERATION_HERE, "x")))
    assert (waiting.state, waiting.reason) == (State.PENDING, "waiting for operation x on this node")


def test_a_report_from_before_the_last_step_ended_says_nothing_about_the_next() -> None:
    def seen(heard_s: float) -> bool | None:
        return observe(a_step(), heard(heard_s), None, None, NOW, ended_at=NOW).installed

    assert (seen(-1), seen(1), seen(6)) == (None, None, True)


def test_a_report_from_before_an_attempt_began_does_not_end_it() -> None:
    step = running()
    request: OpenRequest = a_request(step)
    before, since = (observe(step, heard(second), request, None, NOW) for second in (-1, 6))
    assert (before.installed, before.told) == (None, False)
    assert (since.installed, since.told) == (True, True)


def test_what_a_report_shows_at_work_is_at_work_though_it_was_meant_for_the_life_before() -> None:
    working = replace(UP, boot=BootId("boot-2"), working=True)
    assert after(running(), working, 30).state is State.RUNNING


def test_a_new_life_that_has_not_told_yet_may_have_the_attempt_in_hand() -> None:
    new_life = replace(UP, boot=BootId("boot-2"), installed=None)
    assert after(running(), replace(new_life, told=False), 2).state is State.RUNNING
    assert after(running(), replace(new_life, told=True), 2).failures == 1


def test_after_a_time_without_frontends_a_worker_is_given_the_time_to_tell() -> None:
    silent = replace(UP, installed=None, told=False)
    assert after(running(), silent, 90).state is State.RUNNING
    assert after(running(), silent, 121).failures == 1


def test_a_foreign_worker_that_was_away_is_waited_for_as_long_as_before() -> None:
    back = after(running(wait_until=None), replace(FOREIGN, working=True), 60)
    assert back.wait_until is not None
    assert back.wait_until - NOW > timedelta(hours=2)
