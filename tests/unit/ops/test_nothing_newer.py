"""Upgrades of nodes that have the newest version."""

from dataclasses import replace

from remuda.ops.model import (
    Dispatch,
    DoneWithNote,
    Kind,
    Observation,
    Outcome,
    Stage,
    State,
    Step,
    Verb,
    Wish,
)
from remuda.ops.steps import advance
from tests.unit.ops.build import BOOT, NODE, OP, PINNED, a_step, at, running

HAS_IT = Observation(boot=BOOT, installed=True, digest=PINNED)
UPGRADE = Dispatch(OP, NODE, Verb.UPGRADE, 1)


def sent(step: Step, seen: Observation) -> Dispatch | None:
    return advance(step, seen, Wish.RUN, at())[1]


def test_an_upgrade_to_the_installed_version_is_sent_if_forced_or_not_started_or_renamed() -> None:
    step = a_step(Kind.UPGRADE, digest=PINNED)
    renamed = replace(step, goal=replace(step.goal, version="2.0"))
    assert sent(replace(step, goal=replace(step.goal, replaces=True)), HAS_IT) == UPGRADE
    assert sent(step, replace(HAS_IT, start_check="failed")) == UPGRADE
    assert sent(renamed, replace(HAS_IT, version="1.0")) == UPGRADE
    assert sent(renamed, replace(HAS_IT, version="2.0")) is None


def test_an_upgrade_that_found_nothing_newer_has_nothing_to_prove() -> None:
    step, how = replace(running(Kind.UPGRADE), proves=True), "it already had this version"
    seen = replace(HAS_IT, outcome=Outcome(1, DoneWithNote(how)))
    done, _ = advance(step, seen, Wish.RUN, at(1))
    assert (done.state, done.stage, done.reason) == (State.SUCCEEDED, Stage.APPLY, how)
