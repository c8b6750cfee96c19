"""The claims can fail: one decision is broken at a time, and a simulation notices, by the right claim."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from remuda.core.errors import Problem
from remuda.ops import steps
from remuda.ops.model import Kind, Moment, Observation, Stage, State, Step, Wish
from remuda.ops.reasons import StepCause, StepReason, because
from remuda.store import ops_attempts
from remuda.store.ops_attempts import RequestHolder
from tests.sim.ops.simulation import run_seed

SEEDS_MOST = 10
_commit, _held, _failed, _next_stage = (
    ops_attempts.commit,
    ops_attempts._held,
    steps._failed,
    steps._next_stage,
)
_goal_met = steps._goal_met


def commit_over_what_is_newer(
    connection: Connection, now: datetime, changes: Sequence[Step], claim: RequestHolder
) -> list[Step]:
    held = _held(connection, changes)
    latest = [replace(step, version=held[step.key].version) for step in changes if step.key in held]
    return _commit(connection, now, latest, claim)


def commit_and_say_that_all_was_written(
    connection: Connection, now: datetime, changes: Sequence[Step], claim: RequestHolder
) -> list[Step]:
    _commit(connection, now, changes, claim)
    return list(changes)


def fail_for_ever(step: Step, problem: Problem, at: Moment) -> Step:
    return _failed(step, problem, replace(at, policy=replace(at.policy, failures_max=1000)))


def say_that_it_went_back(step: Step, stage: Stage) -> Step:
    if stage is not Stage.ROLL_BACK:
        return _next_stage(step, stage)
    return replace(
        step,
        stage=stage,
        state=State.FAILED,
        why=because(StepCause.ROLLED_BACK, "it did not start", "the last version kept there"),
    )


def goal_is_met_by_any_version(step: Step, seen: Observation) -> StepReason | None:
    installed = step.kind is Kind.UPGRADE and seen.installed and not seen.away
    return because(StepCause.LISTED, "it") if installed else _goal_met(step, seen)


def blame_the_version(step: Step, problem: Problem, at: Moment) -> Step:
    return steps._unproven(step, problem) if step.stage is Stage.PROVE else _failed(step, problem, at)


def wait_for_ever(step: Step, seen: Observation, wish: Wish, at: Moment) -> tuple[Step, None]:
    return step, None


@dataclass(frozen=True, slots=True)
class Break:
    target: str
    instead: Any
    noticed_by: str
    first_seed: int = 0
    long: bool = False  # Noticed late; that the claim can fail is shown in another way, too.


BREAKS = {
    "a frontend writes over what others wrote": Break(
        "remuda.store.ops_attempts.commit", commit_over_what_is_newer, "an_attempt_is_sent_once"
    ),
    "a frontend sends what another has begun": Break(
        "remuda.store.ops_attempts.commit", commit_and_say_that_all_was_written, "an_attempt_is_sent_once"
    ),
    "what a worker has in hand is not looked at": Break(
        "remuda.ops.planning._working", lambda *_: False, "still_at_work_is_no_failure", first_seed=1
    ),
    "failures are not counted": Break(
        "remuda.ops.steps._failed", fail_for_ever, "failures_are_bounded", first_seed=15
    ),
    "everybody goes at once": Break(
        "remuda.ops.concurrency._paced", lambda *_: {}, "the_canary_goes_alone", first_seed=6
    ),
    "nobody goes first on a node": Break(
        "remuda.ops.concurrency._behind_others", lambda *_: {}, "one_live_attempt", first_seed=7
    ),
    "any version is the one that is wanted": Break(
        "remuda.ops.steps._goal_met",
        goal_is_met_by_any_version,
        "success_has_the_pinned_digest",
        first_seed=1,
    ),
    "an install takes whatever is there": Break(
        "remuda.ops.steps._other_bytes", lambda *_: False, "success_has_the_pinned_digest"
    ),
    "a version is blamed for what the bus does": Break(
        "remuda.ops.steps._failed", blame_the_version, "only_a_bad_version_is_taken_back", first_seed=1
    ),
    "a node is not taken back": Break(
        "remuda.ops.steps._next_stage",
        say_that_it_went_back,
        "went_back_to_the_version_before",
        first_seed=25,
    ),
    "what is lost is waited for": Break(
        "remuda.ops.steps._keep_waiting", wait_for_ever, "everything_ends", first_seed=10, long=True
    ),
    "nobody is asked what they have": Break(
        "remuda.ops.inventories.Inventories.want",
        lambda *_, **__: None,
        "what_is_listed_is_soon_done",
        first_seed=82,
    ),
    "keys of wishes that join another are forgotten": Break(
        "remuda.store.ops_intents._insert_joined",
        lambda *_: None,
        "a_key_stands_for_one_operation",
        first_seed=15,
    ),
    "changes have no number": Break(
        "remuda.store.ops_attempts.number_changes", lambda *_: None, "every_change_has_a_number"
    ),
    "no operation is ever over": Break(
        "remuda.store.ops_attempts.finish_operations", lambda *_: None, "over_exactly_when_all_steps_are"
    ),
    "bars follow whatever comes": Break(
        "remuda.ops.progress._risen",
        lambda live, fraction: fraction,
        "shown_progress_never_falls",
        first_seed=6,
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * broken.long) for name, broken in BREAKS.items()],
)
def test_a_broken_decision_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BREAKS[name]
    monkeypatch.setattr(broken.target, broken.instead)
    seeds = range(broken.first_seed, broken.first_seed + SEEDS_MOST)
    failures = (run_seed(seed).failure for seed in seeds)
    noticed = next((str(failure) for failure in failures if failure is not None), "nothing")
    assert noticed.startswith(broken.noticed_by)
