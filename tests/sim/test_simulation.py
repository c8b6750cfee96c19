"""Whole fleets, each lived through from one seed: nothing that a checker claims is ever broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.simulate import explain

from tests.sim import calm
from tests.sim.simulation import Outcome, run_seed
from tests.sim.storm import EVENTS_LEAST, FAULTS_LEAST

SEEDS = 500
PER_TEST = 20  # Small enough that parallel workers end at about the same time.
ROOT = Path(__file__).parents[2]


def lived_through(seed: int) -> Outcome:
    outcome = run_seed(seed)
    assert outcome.failure is None, explain(outcome)
    return outcome


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_no_seed_breaks_a_claim(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        trace = lived_through(seed).trace
        assert len(trace.lines) >= EVENTS_LEAST, f"seed {seed}"
        assert trace.fault_count >= FAULTS_LEAST, f"seed {seed}"


def test_the_same_seed_is_the_same_story() -> None:
    first = [lived_through(seed).trace.lines for seed in (3, 14)]
    again = [lived_through(seed).trace.lines for seed in (14, 3)]
    assert first == again[::-1]


def test_a_story_does_not_depend_on_how_texts_are_hashed() -> None:
    assert _told_by_another_process(27, hash_seed="1") == lived_through(27).trace.lines


def test_faults_of_every_kind_are_met() -> None:
    met = set().union(*(lived_through(seed).trace.faults for seed in range(12)))
    assert len(met) >= 15, sorted(met)


def test_a_failing_seed_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "SETTLED_WITHIN_S", 0.0)
    monkeypatch.setattr(calm, "unsettled", lambda fleet: ["the weather"])
    outcome = run_seed(0)
    told = explain(outcome)
    assert "settles_in_time" in told
    assert outcome.trace.lines[-1] in told
    assert "python -m bench.simulate --seed 0 --trace" in told


def _told_by_another_process(seed: int, *, hash_seed: str) -> list[str]:
    script = f"from tests.sim.simulation import run_seed; print(*run_seed({seed}).trace.lines, sep='\\n')"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return told.stdout.splitlines()
