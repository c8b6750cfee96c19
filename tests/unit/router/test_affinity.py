"""Requests are kept together as long as that overloads nobody."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from remuda.router.affinity import (
    GUARDED,
    PREFIX,
    SESSION,
    SESSION_GUARDED,
    SPREAD,
    Balance,
    choose_by_prefix,
    choose_by_session,
    eligible,
)
from remuda.router.table import Route
from tests.support.scripted_upstreams import route_to

ROUTES = tuple(route_to("qwen", index, f"n{index}") for index in range(4))
loads = st.lists(st.integers(0, 9), min_size=4, max_size=4)


def by_prefix(
    load: list[int], matches: Mapping[int, int], windows: int = 10, weights: Mapping[int, float] | None = None
) -> tuple[int, str]:
    seen = [matches.get(place, 0) for place in range(4)]
    found = choose_by_prefix(ROUTES, load, seen, windows, lambda place: (weights or {}).get(place, 0.0))
    assert found is not None
    return found


def test_the_one_that_has_seen_most_is_chosen() -> None:
    assert by_prefix([0, 0, 0, 0], {1: 3, 2: 8}) == (2, PREFIX)


def test_too_little_of_a_prompt_does_not_count() -> None:
    assert by_prefix([0, 0, 0, 0], {1: 2}, weights={0: 5.0, 2: 1.0, 3: 2.0}) == (1, SPREAD)


def test_busy_one_is_left_out_whatever_it_has_seen() -> None:
    assert by_prefix([0, 3, 0, 0], {1: 10}, weights={0: 5.0, 2: 4.0, 3: 1.0}) == (3, GUARDED)


def test_another_that_has_seen_as_much_will_do() -> None:
    assert by_prefix([0, 9, 1, 0], {1: 10, 2: 10}) == (2, PREFIX)


def test_nothing_known_goes_where_least_was_given() -> None:
    assert by_prefix([1, 1, 0, 0], {}, weights={2: 2.0, 3: 1.0}) in {(0, SPREAD), (1, SPREAD)}


@given(loads, st.dictionaries(st.integers(0, 3), st.integers(0, 10)))
def test_the_chosen_is_never_much_busier_than_the_least_busy(
    load: list[int], matches: Mapping[int, int]
) -> None:
    chosen, _ = by_prefix(load, matches)
    assert load[chosen] <= min(min(load) + 2, min(load) * 1.5 + 1)


@given(loads, st.text(max_size=9))
def test_a_session_stays_while_its_replica_is_not_too_busy(load: list[int], session: str) -> None:
    calm = choose_by_session(ROUTES, [0] * 4, session)
    busy = choose_by_session(ROUTES, load, session)
    assert calm is not None
    assert busy is not None
    assert calm[1] == SESSION
    open_to = eligible(ROUTES, load, Balance())
    assert busy == (calm if calm[0] in open_to else (busy[0], SESSION_GUARDED))
    assert busy[0] in open_to


@given(st.lists(st.text(max_size=9), unique=True, max_size=30))
def test_only_sessions_of_a_replica_that_goes_move(sessions: list[str]) -> None:
    def of(session: str, routes: tuple[Route, ...]) -> Route:
        found = choose_by_session(routes, [0] * len(routes), session)
        assert found is not None
        return routes[found[0]]

    for session in sessions:
        before = of(session, ROUTES)
        assert before == ROUTES[3] or of(session, ROUTES[:3]) == before


def test_where_none_has_room_none_is_chosen() -> None:
    full = tuple(route_to("qwen", index, f"n{index}", parallel=1) for index in range(2))
    assert choose_by_prefix(full, [1, 1], [0, 0], 3, lambda place: 0.0) is None
    assert choose_by_session(full, [1, 1], "ada") is None
