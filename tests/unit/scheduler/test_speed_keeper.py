"""Speeds are kept as they are seen, and what the store did not take is not lost."""

from collections.abc import Sequence

import pytest

from remuda.core.errors import Unavailable
from remuda.core.ids import NodeId
from remuda.scheduler.measured_speed import Expected, MeasuredRate, Rate, Took, moved_time
from remuda.scheduler.speed_keeper import SpeedKeeper

pytestmark = pytest.mark.anyio

NODE = NodeId("node-1")
GB = 1 << 30


class Kept:
    def __init__(self) -> None:
        self.by_key: dict[object, MeasuredRate] = {}
        self.writes = 0
        self.away = False

    async def rates(self) -> Sequence[MeasuredRate]:
        return list(self.by_key.values())

    async def keep(self, rates: Sequence[MeasuredRate]) -> None:
        if self.away:
            raise Unavailable("the store is away")
        self.writes += 1
        self.by_key |= {one.key: one for one in rates}


def keeper(store: Kept) -> SpeedKeeper:
    return SpeedKeeper(store, lambda model: ("llama-cpp", 4 * GB))


async def test_what_was_seen_is_known_after_a_pass() -> None:
    speeds = keeper(Kept())
    speeds.answered(NODE, "qwen", 100, 2.0)
    speeds.moved_bytes(Rate.LOAD, NODE, "qwen", 4 * GB, 8.0)
    await speeds.pass_once()
    assert speeds.known().tokens_per_s(NODE, "qwen", "llama-cpp", 0) == Expected(50.0)
    assert speeds.known().bytes_per_s(Rate.LOAD, NODE, "phi") == GB / 2


async def test_short_answers_and_few_bytes_tell_nothing() -> None:
    store = Kept()
    speeds = keeper(store)
    speeds.answered(NODE, "qwen", 3, 0.1)
    speeds.moved_bytes(Rate.COPY, NODE, "qwen", 100, 0.1)
    await speeds.pass_once()
    assert not store.writes


async def test_an_answer_as_fast_as_the_last_is_not_written_again() -> None:
    store = Kept()
    speeds = keeper(store)
    for _ in range(3):
        speeds.answered(NODE, "qwen", 100, 2.0)
        await speeds.pass_once()
    assert store.writes == 1


async def test_what_the_store_did_not_take_is_written_later() -> None:
    store = Kept()
    speeds = keeper(store)
    speeds.answered(NODE, "qwen", 100, 2.0)
    store.away = True
    with pytest.raises(Unavailable):
        await speeds.pass_once()
    store.away = False
    await speeds.pass_once()
    assert speeds.known().tokens_per_s(NODE, "qwen", "llama-cpp", 0) == Expected(50.0)


async def test_what_took_so_long_is_kept_and_moves_by_half() -> None:
    speeds = keeper(Kept())
    speeds.took(Rate.UNLOAD, NODE, "qwen", 2.0)
    await speeds.pass_once()
    assert speeds.known().unload_s(NODE, "phi") == Took(2.0)
    speeds.took(Rate.UNLOAD, NODE, "qwen", 4.0)
    await speeds.pass_once()
    assert speeds.known().unload_s(NODE, "qwen") == Took(1 / 0.375)


async def test_a_benchmark_counts_for_what_it_is_though_it_is_slower() -> None:
    speeds = keeper(Kept())
    speeds.answered(NODE, "qwen", 100, 1.0)
    await speeds.pass_once()
    speeds.benchmarked(NODE, "qwen", 40.0)
    await speeds.pass_once()
    assert speeds.known().tokens_per_s(NODE, "qwen", "llama-cpp", 0) == Expected(40.0)


def test_no_time_at_all_is_told_as_a_little() -> None:
    assert moved_time(None, 0.0) == 1000.0


async def test_a_backend_that_people_had_installed_tells_what_an_install_takes() -> None:
    speeds = keeper(Kept())
    speeds.took(Rate.BACKEND, NODE, "vllm", 40.0)
    await speeds.pass_once()
    assert speeds.known().install_s(NODE, "vllm") == Took(40.0)
    assert speeds.known().install_s(NodeId("node-2"), "vllm") == Took(40.0, elsewhere=True)
    assert speeds.known().install_s(NODE, "llama-cpp") is None
