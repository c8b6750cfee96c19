"""Progress events, folded into what a person sees."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.ops.model import OpId
from remuda.ops.progress import LiveProgress, aged, end, entered, fold, worth_keeping
from remuda.ops.progress_board import ProgressBoard
from remuda.store.ops import SqlOpStore
from remuda.wire.backends import InstallProgress
from tests.support.clocks import HandClock, HostClock
from tests.support.fleet_tables import fresh_database

MIB = 1 << 20
FRESH = LiveProgress(attempt=1)


def ours(seq: int, overall: float, current: int = 0, total: int = 0, **more: Any) -> InstallProgress:
    event = InstallProgress(seq=seq, overall=overall, current_bytes=current, total_bytes=total)
    return event.model_copy(update={"phase": "downloading", **more})


def theirs(layer: int, current: str, total: str = "100.0 MiB", percentage: float = 0.0) -> InstallProgress:
    name = f"Downloading {layer}/3 registry.example/backend:latest"
    return InstallProgress(
        file_name=name, current=current, total=total, percentage=percentage, phase="downloading"
    )


def unpacking(current: str, total: str = "200.0 MiB") -> InstallProgress:
    name = "Extracting registry.example/backend:latest"
    return InstallProgress(file_name=name, current=current, total=total, phase="downloading")


def folded(*events: InstallProgress, every_s: float = 1.0) -> LiveProgress:
    live = FRESH
    for number, event in enumerate(events):
        live = fold(live, event, number * every_s)
    return live


def test_an_event_that_was_overtaken_changes_nothing() -> None:
    live = folded(ours(2, 40.0))
    assert fold(live, ours(1, 90.0), 1.0) is live


def test_parts_of_a_load_count_for_themselves_and_one_that_is_over_does_not_come_back() -> None:
    """Hashing, staging and installing are told by requests of their own, whose numbers begin anew."""
    live = folded(ours(9, 0.0, 5, phase="hashing"), ours(700, 45.0, 3, phase="staging"))
    assert (live.phase, live.current_bytes) == ("staging", 3)
    assert fold(live, ours(10, 0.0, 6, phase="hashing"), 3.0) is live
    assert fold(live, ours(699, 46.0, 4, phase="staging"), 3.0) is live
    installing = fold(live, ours(1, 10.0, 1), 3.0)
    assert (installing.phase, installing.fraction) == ("downloading", 0.45)
    assert fold(installing, ours(701, 46.0, 4, phase="staging"), 4.0) is installing


def test_an_event_without_a_number_after_those_with_one_changes_nothing() -> None:
    """Whoever numbers its events numbers all of them: another one is a stranger's."""
    live = folded(ours(2, 40.0))
    assert fold(live, theirs(3, "90.0 MiB"), 1.0) is live
    assert fold(live, unpacking("190.0 MiB"), 1.0) is live


def test_a_late_tick_does_not_undo_the_end() -> None:
    ended = end(folded(ours(1, 40.0)))
    assert fold(ended, ours(2, 50.0), 1.0) is ended


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 100)), max_size=20))
def test_shuffled_events_never_lower_the_fraction(events: list[tuple[int, float]]) -> None:
    live = FRESH
    for number, (seq, overall) in enumerate(events):
        after = fold(live, ours(seq, overall), float(number))
        assert (after.fraction or 0.0) >= (live.fraction or 0.0)
        live = after


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 100)), max_size=20))
def test_percentages_that_restart_per_layer_never_lower_the_fraction(events: list[tuple[int, int]]) -> None:
    live = FRESH
    for number, (layer, size) in enumerate(events):
        after = fold(live, theirs(layer, f"{size}.0 MiB"), float(number))
        assert (live.fraction or 0.0) <= (after.fraction or 0.0) <= 0.5
        assert after.current_bytes <= after.total_bytes
        live = after


def test_layers_of_a_worker_without_seq_add_up() -> None:
    live = folded(theirs(1, "30.0 MiB"), theirs(2, "1.0 MiB"), theirs(2, "20.0 MiB"))
    assert (live.current_bytes, live.total_bytes) == (50 * MIB, 100 * MIB)


def test_unpacking_is_told_from_downloading_by_what_is_shown() -> None:
    live = folded(theirs(3, "60.0 MiB"), unpacking("100.0 MiB"))
    assert (live.phase, live.current_bytes, live.fraction) == ("extracting", 100 * MIB, 0.75)


def test_where_the_total_is_unknown_so_is_the_fraction() -> None:
    assert folded(theirs(1, "5.0 MiB", total="")).fraction is None


def test_rate_and_time_left_come_from_measured_bytes() -> None:
    live = folded(ours(1, 50.0, 50 * MIB, 100 * MIB), ours(2, 60.0, 60 * MIB, 100 * MIB), every_s=2.0)
    assert live.rate_bytes_s == 5 * MIB
    assert live.left == timedelta(seconds=8)


def test_no_time_is_told_before_anything_was_measured() -> None:
    live = folded(ours(1, 50.0, 50 * MIB, 100 * MIB))
    assert (live.rate_bytes_s, live.left) == (None, None)


def test_a_worker_whose_bytes_are_rounded_gets_no_time_left() -> None:
    live = folded(theirs(1, "10.0 MiB"), theirs(1, "20.0 MiB"))
    assert live.rate_bytes_s == 10 * MIB
    assert live.left is None


def test_what_was_heard_a_while_ago_has_an_age_and_no_rate() -> None:
    live = folded(ours(1, 50.0, 50 * MIB, 100 * MIB), ours(2, 60.0, 60 * MIB, 100 * MIB), every_s=2.0)
    assert aged(live, 6.0) is live
    quiet = aged(live, 48.0)
    assert (quiet.age_s, quiet.rate_bytes_s, quiet.left) == (45, None, None)
    assert quiet.current_bytes == 60 * MIB
    assert aged(quiet, 49.0) is quiet
    again = fold(quiet, ours(3, 70.0, 70 * MIB, 100 * MIB), 50.0)
    assert (again.age_s, again.current_bytes) == (None, 70 * MIB)
    assert aged(entered(live, "starting"), 500.0).age_s is None, "of which nobody tells anything"


@pytest.mark.anyio
async def test_a_board_shows_no_rate_of_what_went_quiet() -> None:
    clock = HandClock()
    board = ProgressBoard(SqlOpStore(fresh_database(HostClock())[0]), clock)
    key = (OpId("op-1"), NodeId("node-1"), 1)
    for number in (1, 2):
        board.hear(key, ours(number, 10.0 * number, number * MIB, 10 * MIB), 2.0 * number)
    clock.passed_s = 100
    board.age()
    live = board.of(OpId("op-1"), NodeId("node-1"))
    assert live is not None
    assert (live.rate_bytes_s, live.age_s) == (None, 95)


def test_only_what_a_reader_would_notice_is_written() -> None:
    kept = folded(ours(1, 40.0))
    assert worth_keeping(None, kept)
    assert not worth_keeping(kept, fold(kept, ours(2, 40.4), 1.0))
    assert worth_keeping(kept, fold(kept, ours(2, 41.5), 1.0))
    assert worth_keeping(kept, fold(kept, ours(2, 40.1, phase="extracting"), 1.0))
