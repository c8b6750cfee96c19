"""Silence is listening time without a heartbeat."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from remuda.fleet.liveness import ListeningPeriod, ListeningPeriods
from tests.support.nodes import NOON

SECOND = timedelta(seconds=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


LATER = at(10_000)


def spans() -> st.SearchStrategy[list[ListeningPeriod]]:
    edges = st.tuples(st.integers(0, 500), st.integers(0, 100))
    return st.lists(edges.map(lambda e: ListeningPeriod(at(e[0]), at(e[0] + e[1]))), max_size=8)


def test_silence_counts_only_while_someone_listens() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(10)), ListeningPeriod(at(100), at(105))])

    assert hearing.silence(at(4), LATER) == 11 * SECOND


def test_silence_of_a_long_dead_node_survives_a_restart_of_the_frontend() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(300)), ListeningPeriod(at(5000), at(5001))])

    assert hearing.silence(at(10), LATER) > timedelta(seconds=60)


def test_time_heard_by_two_frontends_counts_once() -> None:
    assert (
        ListeningPeriods.of([ListeningPeriod(at(0), at(10)), ListeningPeriod(at(5), at(15))]).silence(
            at(0), LATER
        )
        == 15 * SECOND
    )


def test_nobody_listening_means_no_silence() -> None:
    assert ListeningPeriods.of([]).silence(NOON, LATER) == timedelta()


def test_what_was_heard_before_the_clock_was_set_back_is_not_held_against_a_heartbeat_since() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(3600))])

    assert hearing.silence(at(100), now=at(107)) == 7 * SECOND


@given(spans(), st.integers(0, 600))
def test_silence_is_never_longer_than_the_time_that_passed(heard: list[ListeningPeriod], last: int) -> None:
    latest = max((span.until for span in heard), default=at(last))

    assert (
        timedelta()
        <= ListeningPeriods.of(heard).silence(at(last), LATER)
        <= max(latest - at(last), timedelta())
    )


@given(spans(), st.integers(0, 600), st.integers(0, 100))
def test_a_later_heartbeat_never_makes_silence_longer(
    heard: list[ListeningPeriod], last: int, later: int
) -> None:
    hearing = ListeningPeriods.of(heard)

    assert hearing.silence(at(last + later), LATER) <= hearing.silence(at(last), LATER)


@given(spans(), spans(), st.integers(0, 600))
def test_another_frontend_can_only_add_to_what_was_heard(
    mine: list[ListeningPeriod], other: list[ListeningPeriod], last: int
) -> None:
    assert ListeningPeriods.of(mine).silence(at(last), LATER) <= ListeningPeriods.of(mine + other).silence(
        at(last), LATER
    )


@given(st.permutations([ListeningPeriod(at(n * 7), at(n * 7 + n)) for n in range(9)]))
def test_order_of_spans_is_irrelevant(shuffled: list[ListeningPeriod]) -> None:
    assert ListeningPeriods.of(shuffled) == ListeningPeriods.of(sorted(shuffled))
