"""Whole fleets, operations over them and requests to them, each lived through from one seed: no claim is
ever broken."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.simulate import STORIES, explain

from tests.sim import calm as calm_of_fleet
from tests.sim.ops import calm as calm_of_operations
from tests.sim.simulation import Outcome

SEEDS = {"fleet": 12, "operations": 8, "serving": 6}  # `./test --long` runs hundreds.
PER_TEST = 2  # Small enough that parallel workers end at about the same time.
# Seeds of short stories.
SHORT = {"fleet": (13, 10), "operations": (1, 7), "serving": (5, 3), "hour": (5, 2), "day": (5, 2)}
EVENTS_LEAST = 200
FAULTS_LEAST = 10
FAULTS_FROM = {"fleet": 13, "operations": 15, "serving": 11}  # From where all kinds are met soonest.
ROOT = Path(__file__).parents[2]


def first_seed() -> int:
    """Where this commit's seeds begin: each commit gets seeds of its own, and always the same ones."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(head.stdout[:6], 16) if head.returncode == 0 else 0


def batches() -> list[tuple[str, int]]:
    base = first_seed()
    return [(story, base + offset) for story in SEEDS for offset in range(0, SEEDS[story], PER_TEST)]


def lived_through(story: str, seed: int) -> Outcome:
    outcome = STORIES[story](seed)
    assert outcome.failure is None, explain(outcome)
    return outcome


@pytest.mark.parametrize(
    ("story", "seed"),
    [
        ("operations", 11065399),  # A tag moved between two attempts at an upgrade that had to be taken back.
        ("operations", 5000027),  # A request came late, to the next life of a LocalAI worker.
        ("serving", 2826041),  # A LocalAI node was removed while it was slow to stop a model, and came back.
        ("serving", 700477),  # A model was to make room whose process had just crashed.
    ],
)
def test_a_seed_that_broke_a_claim_once_does_so_no_more(story: str, seed: int) -> None:
    assert lived_through(story, seed).failure is None


@pytest.mark.parametrize(("story", "first"), batches())
def test_no_seed_breaks_a_claim(story: str, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        trace = lived_through(story, seed).trace
        assert len(trace.lines) >= EVENTS_LEAST, f"seed {seed}"
        assert trace.fault_count >= FAULTS_LEAST, f"seed {seed}"


@pytest.mark.parametrize(
    "stories", [tuple(SEEDS), *(pytest.param((story,), marks=pytest.mark.long) for story in ("hour", "day"))]
)
def test_the_same_seed_is_the_same_story(stories: tuple[str, ...]) -> None:
    """Whatever was lived through before it, and however texts are hashed."""
    told = told_by_another_process(stories, hash_seed="1")
    for story in stories:
        lines = lived_through(story, SHORT[story][1]).trace.lines
        assert told[: len(lines)] == lines, story
        told = told[len(lines) :]
    assert told == []


@pytest.mark.parametrize(("story", "kinds"), [("fleet", 15), ("operations", 13), ("serving", 20)])
def test_faults_of_every_kind_are_met(story: str, kinds: int) -> None:
    met: set[str] = set()
    for seed in range(FAULTS_FROM[story], FAULTS_FROM[story] + 20):
        met |= set(lived_through(story, seed).trace.faults)
        if len(met) >= kinds:
            return
    pytest.fail(f"only these were met: {sorted(met)}")


def test_a_failing_seed_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm_of_fleet, "SETTLED_WITHIN_S", 0.0)
    monkeypatch.setattr(calm_of_fleet, "unsettled", lambda fleet: ["the weather"])
    outcome = STORIES["fleet"](0)
    told = explain(outcome)
    assert "settles_in_time" in told
    assert outcome.trace.lines[-1] in told
    assert "python -m bench.simulate --seed 0 --trace" in told


def test_a_failing_seed_of_another_story_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm_of_operations, "unsettled", lambda world: ["the weather"])
    told = explain(STORIES["operations"](1))
    assert "everything_ends" in told
    assert "python -m bench.simulate --of operations --seed 1 --trace" in told


def told_by_another_process(stories: Sequence[str], *, hash_seed: str) -> list[str]:
    """It imports everything, which takes it longer than to live through a short story."""
    script = "from bench.simulate import STORIES\n" + "".join(_telling(story) for story in stories)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return told.stdout.splitlines()


def _telling(story: str) -> str:
    before, seed = SHORT[story]
    small = "serving" if story in ("hour", "day") else story
    return f"STORIES[{small!r}]({before})\nprint(*STORIES[{story!r}]({seed}).trace.lines, sep='\\n')\n"
