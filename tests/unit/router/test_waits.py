"""What a request has waited for adds up to how long it has waited."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from remuda.router.loading import LoadStatus, WaitNotes, busy_cause, load_cause, servers_busy_cause
from tests.unit.router.test_listed_servers import server

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
        load_cause(LoadStatus("qwen", placed=True)),
        load_cause(LoadStatus("qwen", "pending", "gpu-1")),
        load_cause(LoadStatus("qwen", "staging", "gpu-1", 40.0)),
        load_cause(LoadStatus("qwen", "installing", "gpu-1", 20.0)),
        load_cause(LoadStatus("qwen", "loading", "gpu-1", 80.0)),
        busy_cause("qwen", 1),
        busy_cause("qwen", 3),
        busy_cause("qwen", 3, 3),
        busy_cause("qwen", 1, 3),
        busy_cause("qwen", 1, 0),
        servers_busy_cause("qwen", [server("nas")]),
        servers_busy_cause("qwen", [server("nas"), server("rack")]),
    ]
    assert told == [
        "a node to be chosen for qwen",
        "room for qwen (gpu-1: it is busy)",
        "qwen to be loaded",
        "qwen to be loaded on gpu-1",
        "the files of qwen to be copied to gpu-1",
        "its backend to be installed on gpu-1",
        "qwen to be loaded on gpu-1",
        "a free replica of qwen: the only one was busy",
        "a free replica of qwen: all 3 were busy",
        "a free replica of qwen: all 3 were busy",
        "a free replica of qwen: all were busy (1 at first, 3 at the end)",
        "a free replica of qwen: all were busy (1 at first, none at the end)",
        "room on a server for qwen: the server nas has as many requests as it may be sent at once",
        "room on a server for qwen: the servers nas, rack have as many requests as they may be sent at once",
    ]


def test_files_that_are_there_or_only_read_are_not_said_to_be_copied() -> None:
    """They count as 100 % at once, and what is read for its hash as nothing."""
    told = {load_cause(LoadStatus("qwen", "staging", "gpu-1", percent)) for percent in (0.0, 100.0)}
    assert told == {"qwen to be loaded on gpu-1"}


def test_a_cause_is_reworded_only_while_it_lasts() -> None:
    notes = WaitNotes()
    notes.begin("a seat", 0)
    notes.reword("a seat", "a better seat")
    notes.begin("a node", 2)
    notes.reword("a seat", "no seat")
    notes.end(3)
    assert notes.over == [("a better seat", 2), ("a node", 1)]


def test_where_it_is_loaded_is_one_wait_with_that_it_is() -> None:
    notes = WaitNotes()
    notes.begin(load_cause(LoadStatus("qwen")), 0)
    notes.begin(load_cause(LoadStatus("qwen", placed=True)), 1)
    notes.begin(load_cause(LoadStatus("qwen", "loading", "gpu-1")), 2)
    notes.end(4)
    assert notes.over == [("a node to be chosen for qwen", 1), ("qwen to be loaded on gpu-1", 3)]


def test_a_load_that_no_look_fell_into_is_told_as_one() -> None:
    notes = WaitNotes()
    notes.begin(load_cause(LoadStatus("qwen")), 0)
    notes.loaded("qwen")
    notes.end(1)
    assert notes.over == [("qwen to be loaded", 1)]
    notes.begin(load_cause(LoadStatus("qwen", "loading", "gpu-1")), 2)
    notes.loaded("qwen")
    notes.end(3)
    assert notes.over[1:] == [("qwen to be loaded on gpu-1", 1)], "it is known where"
