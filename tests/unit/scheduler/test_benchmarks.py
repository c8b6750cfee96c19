"""What a benchmark measured counts as the speed of its node, by which placement ranks."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from remuda.core.ids import NodeId
from remuda.fleet.health import Standing
from remuda.scheduler.benchmarks import Benchmark, Measured, RankedBenchmarks, answer_speed
from tests.support.clocks import START
from tests.unit.scheduler.standing import a_view

pytestmark = pytest.mark.anyio

# 100 tokens in 2 s, of which the first took half a second.
ALONE = Measured("qwen", "gpu-1", 1, 4, 0, 20, 100, 500.0, 510.0, 50.0, 400.0)


class Kept:
    async def benchmarks(self, model: str = "") -> Sequence[Benchmark]:
        return ()

    async def keep(self, measured: Sequence[Measured], revision: str, backend: str) -> Sequence[Benchmark]:
        return [Benchmark(number, one, revision, backend, START) for number, one in enumerate(measured)]


def test_speed_of_an_answer_is_counted_after_its_first_token() -> None:
    assert answer_speed(ALONE) == pytest.approx(99 / 1.5)


@pytest.mark.parametrize(
    "other",
    [
        replace(ALONE, streams=4),
        replace(ALONE, node=""),
        replace(ALONE, tokens_per_s=0.0),
        replace(ALONE, completion_tokens=1),
        replace(ALONE, first_token_ms=2000.0),
    ],
)
def test_what_tells_no_answers_speed_tells_none(other: Measured) -> None:
    assert answer_speed(other) == 0


async def test_what_is_kept_is_told_for_its_node() -> None:
    told: list[tuple[NodeId, str]] = []

    async def standings() -> Sequence[Standing]:
        return [a_view("gpu-1").standing]

    store = RankedBenchmarks(Kept(), standings, lambda node, model, speed: told.append((node, model)))
    kept = await store.keep(
        [ALONE, replace(ALONE, node="gone"), replace(ALONE, streams=8)], "r1", "llama-cpp"
    )
    assert len(kept) == 3
    assert told == [(NodeId("id-gpu-1"), "qwen")]
