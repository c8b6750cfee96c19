"""Operations over whole fleets, each lived through from one seed: no claim is ever broken, and all ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.simulate import explain

from tests.sim.ops import calm
from tests.sim.ops.simulation import run_seed
from tests.sim.ops.storm import EVENTS_LEAST, FAULTS_LEAST
from tests.sim.simulation import Outcome

SEEDS = 500
PER_TEST = 10  # Small enough that parallel workers end at about the same time.
ROOT = Path(__file__).parents[3]


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
    first = [lived_through(seed).trace.lines for seed in (3, 15)]
    again = [lived_through(seed).trace.lines for seed in (15, 3)]
    assert first == again[::-1]


def test_a_story_does_not_depend_on_how_texts_are_hashed() -> None:
    assert _told_by_another_process(9, hash_seed="1") == lived_through(9).trace.lines


def test_faults_of_every_kind_are_met() -> None:
    met = set().union(*(lived_through(seed).trace.faults for seed in range(20)))
    assert len(met) >= 13, sorted(met)


def test_a_failing_seed_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "unsettled", lambda world: ["the weather"])
    outcome = run_seed(1)
    told = explain(outcome)
    assert "everything_ends" in told
    assert "python -m bench.simulate --of operations --seed 1 --trace" in told


def _told_by_another_process(seed: int, *, hash_seed: str) -> list[str]:
    script = f"from tests.sim.ops.simulation import run_seed; print(*run_seed({seed}).trace.lines, sep='\\n')"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return told.stdout.splitlines()
