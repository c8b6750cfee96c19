"""What a request has waited for adds up to how long it has waited."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from remuda.router.loading import LoadStatus, WaitNotes, busy_cause, load_cause

steps = st.lists(st.tuples(st.sampled_from(("a", "b", "c")), st.integers(0, 9)), max_size=60)


@given(steps)
def test_waits_add_up_and_none_is_told_twice_in_a_row(steps: list[tuple[str, int]]) -> None:
    notes, now_s = WaitNotes(), 0
    for cause, took_s in steps:
        notes.begin(cause, now_s)
        now_s += took_s
    notes.end(now_s)
    assert sum(took_s for _, took_s in notes.over) == now_s
    causes = [cause for cause, _ in notes.over]
    assert all(one != other for one, other in pairwise(causes))
    assert len(causes) <= 33


def test_causes_are_sentences_without_figures_that_change() -> None:
    told = [
        load_cause(LoadStatus("qwen")),
        load_cause(LoadStatus("qwen", waits_for="gpu-1: it is busy")),
        load_cause(LoadStatus("qwen", "staging", "gpu-1", 40.0)),
        load_cause(LoadStatus("qwen", "loading", "gpu-1", 80.0)),
        busy_cause("qwen", 1),
        busy_cause("qwen", 3),
    ]
    assert told == [
        "a node for qwen",
        "room for qwen (gpu-1: it is busy)",
        "the files of qwen to be copied to gpu-1",
        "qwen to be loaded on gpu-1",
        "a free replica of qwen: the only one was busy",
        "a free replica of qwen: all 3 were busy",
    ]
