"""When a machine's owner is taken to use its GPU, and when no longer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.hardware.host import Nvml
from remuda.worker.processes.gpu_sharing import (
    BEGINS_AFTER,
    OVER_AFTER_S,
    OthersUse,
    Sharing,
    after_look,
    others_use,
)
from tests.unit.worker.hardware.fixture_host import RecordedDevice, RecordedMemory, RecordedNvmlLibrary
from tests.unit.worker.hardware.fixture_host import RecordedNvml as Told

GIB = 1 << 30
GAME = OthersUse(6 * GIB, 85, ("game",))
DESKTOP = OthersUse(GIB // 2, 3, ("Xorg",))
MEMORY = RecordedMemory(total=24 * GIB, free=10 * GIB)
ALIVE = {10: "llama-server", 20: "game", 30: "Xorg"}


def card(**told: object) -> Nvml:
    device = RecordedDevice.model_validate({"memory": MEMORY, "cc": (8, 9), **told})
    return RecordedNvmlLibrary(Told(devices=[device]))


def test_a_game_is_told_apart_from_our_model_and_from_the_desktop() -> None:
    nvml = card(
        processes=[(10, 9 * GIB)], graphics=[(20, 6 * GIB), (30, GIB // 2)], busy=[(10, 40), (20, 85)]
    )
    use = others_use(nvml, {10}, ALIVE)
    assert use == OthersUse(6 * GIB + GIB // 2, 85, ("game", "Xorg"))
    assert str(use) == "its owner uses the GPU: game and Xorg, 85 % of the time and 6.5 GiB"


def test_our_models_alone_are_nobody_elses_use() -> None:
    use = others_use(card(processes=[(10, 9 * GIB)], busy=[(10, 99)]), {10}, ALIVE)
    assert not use.counts


def test_of_processes_that_are_numbered_otherwise_nothing_is_concluded() -> None:
    assert others_use(card(processes=[(4711, 9 * GIB)], busy=[(4711, 99)]), {10}, ALIVE) == OthersUse()


@pytest.mark.parametrize(("vram", "counts"), [(GIB, False), (4 * GIB, True)])
def test_where_the_driver_does_not_tell_how_busy_it_is_a_lot_of_memory_counts(
    vram: int, counts: bool
) -> None:
    assert others_use(card(graphics=[(20, vram)], busy=None), {10}, ALIVE).counts is counts


def test_a_moment_of_use_is_none_and_a_pause_is_no_end() -> None:
    sharing = after_look(Sharing(), GAME, 0)
    assert not sharing.claimed
    sharing = after_look(sharing, GAME, 5)
    assert "game" in sharing.claimed
    sharing = after_look(sharing, DESKTOP, 10)
    assert sharing.claimed
    assert not after_look(sharing, DESKTOP, 5 + OVER_AFTER_S).claimed


looks = st.lists(st.tuples(st.booleans(), st.floats(1, 30)), max_size=40)


@given(looks)
def test_it_is_claimed_only_after_use_and_never_long_after_it(seen: list[tuple[bool, float]]) -> None:
    sharing, now_s, in_a_row, last_s = Sharing(), 0.0, 0, float("-inf")
    for used, pause_s in seen:
        now_s += pause_s
        in_a_row = in_a_row + 1 if used else 0
        last_s = now_s if used else last_s
        sharing = after_look(sharing, GAME if used else replace(DESKTOP, busy_percent=0), now_s)
        if in_a_row >= BEGINS_AFTER:
            assert sharing.claimed
        if now_s - last_s >= OVER_AFTER_S:
            assert not sharing.claimed
