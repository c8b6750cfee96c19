"""Restart delays: bounded, growing, reset by a healthy life."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from remuda.host.restarts import GiveUp, Restart, RestartPolicy, after_exit

HEALTHY = timedelta(seconds=30)
SHORT = timedelta(seconds=1)


@st.composite
def policies(draw: st.DrawFn, *, gives_up: bool | None = None) -> RestartPolicy:
    first = draw(st.timedeltas(timedelta(milliseconds=1), timedelta(seconds=10)))
    longer = draw(st.timedeltas(timedelta(0), timedelta(minutes=5)))
    limit = st.integers(1, 20)
    limits = {True: limit, False: st.none(), None: st.none() | limit}[gives_up]
    return RestartPolicy(first, first + longer, HEALTHY, draw(limits))


lives = st.lists(st.timedeltas(timedelta(0), timedelta(minutes=2)), max_size=60)


def decisions(policy: RestartPolicy, lived: list[timedelta]) -> list[Restart | GiveUp]:
    made: list[Restart | GiveUp] = []
    short_lives = 0
    for life in lived:
        made.append(after_exit(policy, short_lives, life))
        if isinstance(made[-1], GiveUp):
            break
        short_lives = made[-1].short_lives
    return made


@given(policies(), lives)
def test_every_delay_lies_between_first_and_most(policy: RestartPolicy, lived: list[timedelta]) -> None:
    delays = [made.delay for made in decisions(policy, lived) if isinstance(made, Restart)]
    assert all(policy.first <= delay <= policy.most for delay in delays)


@given(policies(gives_up=False), st.integers(2, 60))
def test_delays_never_shrink_while_lives_stay_short(policy: RestartPolicy, count: int) -> None:
    delays = [made.delay for made in decisions(policy, [SHORT] * count) if isinstance(made, Restart)]
    assert delays == sorted(delays)
    assert len(delays) == count


@given(policies(gives_up=False), lives)
def test_a_long_healthy_life_resets_the_delay(policy: RestartPolicy, lived: list[timedelta]) -> None:
    *_, last = decisions(policy, [*lived, HEALTHY])
    assert last == Restart(policy.first, short_lives=0)


@given(policies(gives_up=True))
def test_it_gives_up_after_exactly_that_many_short_lives(policy: RestartPolicy) -> None:
    assert policy.give_up_after is not None
    made = decisions(policy, [SHORT] * 100)
    assert len(made) == policy.give_up_after
    assert isinstance(made[-1], GiveUp)


@given(policies(gives_up=True), st.integers(0, 100))
def test_healthy_lives_are_never_given_up_on(policy: RestartPolicy, count: int) -> None:
    assert all(isinstance(made, Restart) for made in decisions(policy, [HEALTHY] * count))


def test_delays_double() -> None:
    policy = RestartPolicy(timedelta(seconds=1), timedelta(seconds=6), HEALTHY)
    made = decisions(policy, [SHORT] * 5)
    assert [one.delay.total_seconds() for one in made if isinstance(one, Restart)] == [1, 2, 4, 6, 6]
