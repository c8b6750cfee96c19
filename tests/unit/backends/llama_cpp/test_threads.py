"""Threads leave room for what else runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.backends.llama_cpp.threads import threads_for, usual_threads


@pytest.mark.parametrize(
    ("cores", "busy", "threads"),
    [
        (1, 0, 1),
        (2, 0, 1),
        (2, 5, 1),
        (4, 0, 3),
        (8, 0.4, 7),
        (8, 3, 5),
        (8, 99, 4),
        (0.5, 0, 1),
        (3.5, 1, 2),
    ],
)
def test_a_core_is_left_and_one_for_each_that_is_busy(cores: float, busy: float, threads: int) -> None:
    assert threads_for(cores, busy) == threads


@given(st.floats(0.1, 512), st.floats(0, 1000))
def test_threads_never_exceed_the_cores_and_never_stop(cores: float, busy: float) -> None:
    threads = threads_for(cores, busy)
    assert 1 <= threads <= max(1, cores)
    assert threads >= cores // 2
    if cores >= 2:
        assert threads < cores


def test_this_machine_has_some() -> None:
    assert usual_threads() >= 1
