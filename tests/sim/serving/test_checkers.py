"""The claims can fail: one decision is broken at a time, and a simulation notices, by the right claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.simulation import run_seed

SEEDS_MOST = 10


async def at_once(*_: object, **__: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Break:
    instead: Mapping[str, Any]
    noticed_by: str


BREAKS = {
    "memory that was set aside is given away again": Break(
        {"remuda.scheduler.offers._set_aside": lambda *_, **__: 0}, "rows_have_room"
    ),
    "a replica counts as loaded before its model is": Break(
        {"remuda.scheduler.loader._Load._model_in_it": at_once}, "only_who_was_ready_is_asked"
    ),
    "a worker's former lives are believed in": Break(
        {
            "remuda.router.building._routable": lambda row, *_: row.state is ReplicaState.LOADED,
            "remuda.scheduler.truth._verdict": lambda *_: None,
            "remuda.router.doubts.Doubts.add": lambda *_: None,
        },
        "no_former_life_is_asked",
    ),
    "requests that ended go on counting": Break(
        {"remuda.router.ledger.Ledger.end": lambda *_: None}, "counts_are_requests"
    ),
    "what nobody knows is left running": Break(
        {"remuda.scheduler.truth._strays": lambda *_: ([], {})}, "everything_settles"
    ),
    "rows outlive their processes": Break(
        {
            "remuda.scheduler.truth._verdict": lambda *_: None,
            "remuda.scheduler.chores.unloads_at": lambda *_: None,
            "remuda.router.doubts.Doubts.add": lambda *_: None,
        },
        "everything_settles",
    ),
    "rows outlive their loads": Break(
        {
            "remuda.scheduler.upkeep.Upkeep._forget": at_once,
            "remuda.scheduler.loader.Loader._abandon": at_once,
        },
        "every_model_is_served",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_decision_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BREAKS[name]
    for target, instead in broken.instead.items():
        monkeypatch.setattr(target, instead)
    failures = (str(run_seed(seed).failure) for seed in range(SEEDS_MOST))
    assert any(failure.startswith(broken.noticed_by) for failure in failures)
