"""Seeds that failed once, each with its reason. They are what they were only while the dice are thrown in the
same order; what they found is also held by a test of its own."""

import tomllib
from pathlib import Path

import pytest
from bench.simulate import explain

from tests.sim.simulation import run_seed

FILES = sorted((Path(__file__).parent / "regressions").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_failed_once_holds(file: Path) -> None:
    regression = tomllib.loads(file.read_text())
    assert regression["reason"]
    outcome = run_seed(regression["seed"])
    assert outcome.failure is None, explain(outcome)
