"""Who is next: keys by their weights, whatever one of them sends at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from remuda.router.fairness import FairLine, SeatClaim, idle_room, may_wait_beyond
from tests.support.scripted_upstreams import route_to

keys = st.sampled_from(("a", "b", "c"))
claims = st.builds(SeatClaim, key=keys, weight=st.integers(1, 5), batch=st.booleans())


def served(line: FairLine[str], most: int = 1000) -> list[str]:
    found = list[str]()
    while len(found) < most and (place := line.take_next()) is not None:
        found.append(place.item)
    return found


def test_a_burst_of_500_of_one_key_does_not_starve_the_single_request_of_another() -> None:
    line = FairLine[str]()
    for _ in range(500):
        line.join("burst", SeatClaim("a"))
    assert served(line, 20) == ["burst"] * 20
    line.join("single", SeatClaim("b"))
    assert "single" in served(line, 2)


def test_keys_are_served_by_their_weights() -> None:
    line = FairLine[str]()
    for _ in range(100):
        line.join("heavy", SeatClaim("a", weight=3))
        line.join("light", SeatClaim("b", weight=1))
    assert Counter(served(line, 80)) == {"heavy": 60, "light": 20}


def test_a_key_alone_is_served_in_the_order_of_its_requests() -> None:
    line = FairLine[str]()
    for number in range(5):
        line.join(str(number), SeatClaim("a", weight=number + 1 if number == 4 else 1))
    assert served(line) == ["0", "1", "2", "3", "4"]


def test_batch_class_is_served_when_no_other_waits() -> None:
    line = FairLine[str]()
    line.join("batch", SeatClaim("a", weight=100, batch=True))
    line.join("one", SeatClaim("b"))
    line.join("two", SeatClaim("b"))
    assert served(line) == ["one", "two", "batch"]


def test_who_had_its_turn_in_vain_comes_back_to_its_place() -> None:
    line = FairLine[str]()
    line.join("first", SeatClaim("a"))
    line.join("second", SeatClaim("b"))
    place = line.take_next()
    assert place is not None
    line.come_back(place, "first")
    assert served(line) == ["first", "second"]


def test_newcomers_wait_for_those_with_a_claim_as_good() -> None:
    line = FairLine[str]()
    assert not line.ahead_of(SeatClaim("a"))
    line.join("batch", SeatClaim("b", batch=True))
    line.join("named", SeatClaim("b"), takes_any=False)
    assert not line.ahead_of(SeatClaim("a"))
    assert line.ahead_of(SeatClaim("a", batch=True))
    line.join("plain", SeatClaim("b"))
    assert line.ahead_of(SeatClaim("a"))


@given(st.lists(st.one_of(claims, st.none()), max_size=80))
def test_nobody_is_lost_and_nobody_is_served_twice(steps: list[SeatClaim | None]) -> None:
    line, joined, left = FairLine[str](), list[str](), list[str]()
    for number, claim in enumerate(steps):
        if claim is None:
            left += served(line, 1)
        else:
            joined.append(str(number))
            line.join(str(number), claim)
    assert sorted(left + served(line)) == sorted(joined)


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 50))
def test_a_newcomer_waits_at_most_for_one_of_each_other_key_at_equal_weights(
    burst: int, others: int, before: int
) -> None:
    line = FairLine[str]()
    for other in range(others):
        for _ in range(burst):
            line.join("other", SeatClaim(f"k-{other}"))
    served(line, min(before, burst * others - 1))
    line.join("new", SeatClaim("newcomer"))
    assert served(line).index("new") <= 2 * others


def test_one_key_that_fills_the_line_does_not_keep_others_from_it() -> None:
    assert not may_wait_beyond(513, 513, 1, 512)
    assert may_wait_beyond(513, 1, 2, 512)
    assert not may_wait_beyond(600, 200, 2, 512)
    assert not may_wait_beyond(1025, 1, 2, 512)


def test_batch_leaves_one_seat_to_others() -> None:
    four, one, unknown = (route_to("m", parallel=seats) for seats in (4, 1, 0))
    assert [idle_room(four, load) for load in (2, 3)] == [True, False]
    assert [idle_room(one, load) for load in (0, 1)] == [True, False]
    assert [idle_room(unknown, load) for load in (0, 1)] == [True, False]
