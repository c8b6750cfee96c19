"""The last hour: joined in any order it is the same, and nothing older or newer is mixed into it."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.model import Resources
from remuda.gateway.history.exchange import HistoryPart, StepTaken, histories_of, parts, sample_of, samples
from remuda.gateway.history.series import (
    AHEAD,
    NO_FIGURES,
    STEP_S,
    STEPS,
    LastHour,
    Sample,
    SeenFigure,
    Values,
    seen_of,
    shared_by,
)
from remuda.wire.codec import decode
from remuda.wire.nodes import Report

A, B = FrontendId("a"), FrontendId("b")
ONE, TWO = NodeId("one"), NodeId("two")
NOW = 175_000_000
HOUR = 20  # Steps: as many as an hour has would only take longer.
GIB = 1 << 30
IDLE = seen_of(Resources(total_ram=64 * GIB, available_ram=60 * GIB))

Told = tuple[FrontendId, Sample]
_figure = st.none() | st.integers(0, 1 << 20).map(float)
_seen = st.dictionaries(st.sampled_from((ONE, TWO)), st.tuples(*[_figure] * len(SeenFigure)), max_size=2)
_counted = st.dictionaries(st.sampled_from((ONE, TWO)), st.tuples(_figure, _figure), max_size=2)


def told(frontend: FrontendId) -> st.SearchStrategy[tuple[FrontendId, Sample]]:
    """A frontend says one thing about each step."""
    steps = st.integers(NOW - HOUR - 3, NOW + AHEAD + 3)
    return st.builds(Sample, steps, _seen, _counted).map(lambda sample: (frontend, sample))


_told = st.lists(told(A) | told(B), max_size=12, unique_by=lambda one: (one[0], one[1].step))


def history_of(all_told: list[Told], now: int = NOW) -> LastHour:
    history = LastHour(now, HOUR)
    for frontend, sample in all_told:
        history.add(frontend, sample)
    return history


def shown(history: LastHour) -> object:
    for _ in history.add_up():
        pass
    return history.of_node(ONE), history.of_node(TWO), history.of_fleet()


def hand_over(giver: LastHour, taker: LastHour) -> None:
    """Over the wire and back."""
    given_on = (giver.of(node, giver.first) for node in sorted(giver.nodes()))
    for part in parts(A, "b", given_on, {}):
        for one in histories_of(decode(HistoryPart, part)):
            taker.join(one)


@given(_told.flatmap(lambda told: st.tuples(st.just(told), st.permutations([*told, *told]))))
def test_order_and_repetition_change_nothing(both: tuple[list[Told], list[Told]]) -> None:
    all_told, mixed = both
    assert shown(history_of(mixed)) == shown(history_of(all_told))


@given(_told, _told)
def test_frontends_that_have_told_each_other_everything_show_the_same(
    left: list[Told], right: list[Told]
) -> None:
    # What one frontend says of a step is the same wherever it was heard.
    said = {(frontend, sample.step): sample for frontend, sample in (*left, *right)}
    left, right = ([(f, said[f, sample.step]) for f, sample in side] for side in (left, right))
    a, b = history_of(left), history_of(right)
    hand_over(a, b)
    hand_over(b, a)
    over = [(f, sample) for f, sample in (*left, *right) if sample.step < NOW]
    assert shown(a) == shown(b) == shown(history_of(over))


@given(_told)
def test_a_step_is_read_as_it_was_told(all_told: list[Told]) -> None:
    read = [
        (FrontendId(message.frontend), sample_of(message))
        for frontend, sample in all_told
        for message in (decode(StepTaken, one) for one in samples(frontend, 0, sample))
    ]
    assert shown(history_of(read)) == shown(history_of(all_told))


@given(_told, st.lists(st.integers(-2 * HOUR, 2 * HOUR), max_size=4))
def test_a_clock_that_is_set_mixes_no_times(all_told: list[Told], moves: list[int]) -> None:
    """What is shown at the end was told of that very step: the ring gives no old value for a new time."""
    history, now = history_of(all_told), NOW
    for move in moves:
        now += move
        history.move_to(now)
        shown(history)
    figures = history.of_node(ONE)
    for time, used in zip(figures.times, figures.values.get("used_ram", ()), strict=True):
        if used is not None:
            assert used in _used_at(all_told, time)
    assert all(now - HOUR <= time // STEP_S < now for time in figures.times)


def _used_at(all_told: list[Told], time: int) -> list[float]:
    return [
        used
        for _, sample in all_told
        if sample.step * STEP_S == time
        and (used := sample.seen.get(ONE, IDLE)[SeenFigure.USED_RAM]) is not None
    ]


def test_a_disk_that_several_workers_share_counts_once() -> None:
    three = NodeId("three")
    both = Resources(total_ram=8 * GIB, available_ram=6 * GIB, total_disk=100 * GIB, available_disk=30 * GIB)
    own = seen_of(
        Resources(total_ram=8 * GIB, available_ram=7 * GIB, total_disk=10 * GIB, available_disk=9 * GIB)
    )
    history = history_of([(A, Sample(NOW - 1, {ONE: seen_of(both), TWO: seen_of(both), three: own}, {}))])
    shown(history)
    assert last(history.of_fleet().values)["free_disk"] == 69 * GIB
    reports = {ONE: Report(disk_id="d", memory_id="m"), TWO: Report(disk_id="d", memory_id="m"), three: None}
    for _ in history.add_up(shared_by(reports)):
        pass
    fleet = history.of_fleet()
    assert last(fleet.values)["free_disk"] == 39 * GIB
    assert last(fleet.limits)["free_disk"] == 110 * GIB
    assert (last(fleet.values)["used_ram"], last(fleet.limits)["used_ram"]) == (3 * GIB, 16 * GIB)
    assert history.of_node(TWO).limits["free_disk"][-1] == 100 * GIB


def test_requests_of_all_frontends_are_added_up_and_memory_is_not() -> None:
    history = history_of(
        [
            (A, Sample(NOW - 1, {ONE: IDLE}, {ONE: (1.5, 40.0)})),
            (B, Sample(NOW - 1, {ONE: IDLE}, {ONE: (2, 2)})),
        ]
    )
    figures = history.of_node(ONE)
    assert figures.times == [(NOW - 1) * STEP_S]
    assert last(figures.values) == {
        "used_ram": 4 * GIB,
        "used_vram": None,
        "in_flight": 3.5,
        "tokens_per_s": 42.0,
        "free_disk": None,
    }
    assert last(figures.limits)["used_ram"] == 64 * GIB


def test_a_node_without_requests_has_none_and_one_that_is_not_heard_is_not_known() -> None:
    history = history_of([(A, Sample(NOW - 3, {ONE: IDLE}, {})), (A, Sample(NOW - 1, {ONE: IDLE}, {}))])
    figures = history.of_node(ONE)
    assert figures.values["in_flight"] == [0, None, 0]
    assert figures.values["used_ram"] == [4 * GIB, None, 4 * GIB]


def test_the_fleet_is_the_sum_of_its_nodes_and_follows_what_comes_late() -> None:
    history = history_of([(A, Sample(NOW - 1, {ONE: IDLE}, {ONE: (1, 5)}))])
    shown(history)
    history.add(A, Sample(NOW - 1, {TWO: IDLE}, {TWO: (2, 7)}))
    shown(history)
    figures = history.of_fleet()
    assert last(figures.values) | {"used_vram": 0} == {
        "used_ram": 8 * GIB,
        "used_vram": 0,
        "in_flight": 3.0,
        "tokens_per_s": 12.0,
        "free_disk": None,
    }


def test_a_node_is_forgotten_an_hour_after_it_was_last_heard() -> None:
    history = history_of([(A, Sample(NOW - 1, {ONE: IDLE}, {ONE: (1, 5)}))])
    history.move_to(NOW + HOUR - 1)
    history.forget_empty()
    assert history.of_node(ONE).times
    history.move_to(NOW + HOUR)
    history.forget_empty()
    assert history.of_node(ONE) == NO_FIGURES
    assert not history.nodes()


def test_parts_of_an_answer_are_bounded_however_many_nodes_there_are() -> None:
    history, full = LastHour(NOW), dict.fromkeys((NodeId(f"n{number}") for number in range(40)), IDLE)
    counted = dict.fromkeys(full, (1.0, 2.0))
    for step in range(NOW - STEPS, NOW):
        history.add(A, Sample(step, full, counted))
        history.add(B, replace(Sample(step, full, counted), seen={}))
    sent = list(parts(A, "b", (history.of(node, 0) for node in sorted(history.nodes())), {A: NOW - 1}))
    read = [decode(HistoryPart, one) for one in sent]
    assert max(map(len, sent)) < 200 << 10
    assert [one.part for one in read] == list(range(len(read)))
    assert [bool(one.complete) for one in read] == [False] * (len(read) - 1) + [True]
    assert sum(len(one.nodes) for one in read) == 40


def last(values: Mapping[str, Values]) -> dict[str, float | None]:
    return {name: all_[-1] for name, all_ in values.items()}
