"""What a person sees of a fetch: never back, never beyond the end, and honest about speed."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.oci.fetch import FileProgress, Meter, PullPhase

totals = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000), min_size=1)
events = st.lists(
    st.tuples(st.sampled_from("abcdx"), st.integers(-10, 2000), st.floats(0, 30)), min_size=1, max_size=60
)


@given(totals=totals, events=events)
def test_the_percentage_never_falls_and_never_passes_100(
    totals: dict[str, int], events: list[tuple[str, int, float]]
) -> None:
    meter, at, before = Meter(totals), 0.0, 0.0
    for file, done, pause in events:
        at += pause
        overall = meter.observe(FileProgress(file, done, totals.get(file, 0)), at)

        assert before <= overall.percentage <= 100
        assert overall.rate_bytes_s >= 0
        assert overall.left is None or overall.left >= timedelta(0)
        before = overall.percentage


@given(totals=totals)
def test_everything_done_is_100(totals: dict[str, int]) -> None:
    meter = Meter(totals)
    for file, total in totals.items():
        overall = meter.observe(FileProgress(file, total, total), 1.0)

    assert overall.percentage == 100
    assert overall.done_bytes == overall.total_bytes


def test_rate_and_time_left_come_from_measured_bytes() -> None:
    meter = Meter({"a": 1000})
    meter.observe(FileProgress("a", 0, 1000), 10.0)
    overall = meter.observe(FileProgress("a", 200, 1000), 12.0)

    assert overall.rate_bytes_s == pytest.approx(100)
    assert overall.left == timedelta(seconds=8)


def test_what_was_on_the_disk_does_not_count_as_speed() -> None:
    meter = Meter({"a": 1000})
    meter.observe(FileProgress("a", 900, 1000), 0.0)
    overall = meter.observe(FileProgress("a", 910, 1000), 1.0)

    assert overall.done_bytes == 910
    assert overall.rate_bytes_s == pytest.approx(10)


def test_the_rate_follows_the_last_seconds() -> None:
    meter = Meter({"a": 10_000})
    for second in range(100):
        meter.observe(FileProgress("a", second * 100, 10_000), float(second))

    assert meter.overall(99.0).rate_bytes_s == pytest.approx(100, rel=0.01)
    assert meter.overall(1000.0).rate_bytes_s < 2


def test_nothing_moving_promises_no_end() -> None:
    assert Meter({"a": 10}).observe(FileProgress("a", 0, 10), 5.0).left is None


def test_other_phases_do_not_count() -> None:
    overall = Meter({"a": 10}).observe(FileProgress("a", 10, 10, PullPhase.EXTRACTING), 0.0)

    assert overall.done_bytes == 0
