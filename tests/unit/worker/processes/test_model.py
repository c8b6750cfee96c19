"""Ports: in one hand at a time, at rest after use, and back to the key that had them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core import limits
from remuda.core.errors import Unavailable
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import PortBook

A, B = ProcessKey("a", 0), ProcessKey("b", 0)
RESTED_S = limits.PORT_QUARANTINE_S
UNCLAIMED_S = limits.PORT_AFFINITY_S


def anything(_port: int) -> bool:
    return True


def test_the_first_process_gets_the_base_port() -> None:
    assert PortBook(50051, 50060).take(A, 0, anything) == 50051


def test_nobody_gets_a_port_that_has_just_been_used() -> None:
    book = PortBook(1, 3)
    book.release(book.take(A, 0, anything), 10)
    assert book.take(A, 10 + RESTED_S - 0.1, anything) == 2


def test_a_key_gets_its_port_back_once_it_has_rested() -> None:
    book = PortBook(1, 9)
    assert [book.take(B, 0, anything), book.take(A, 0, anything)] == [1, 2]
    book.release(1, 0)
    book.release(2, 0)
    assert book.take(A, RESTED_S, anything) == 2


def test_others_take_an_unused_port_before_one_that_somebody_may_come_back_to() -> None:
    book = PortBook(1, 2)
    book.release(book.take(A, 0, anything), 0)
    assert book.take(B, RESTED_S, anything) == 2


def test_a_port_is_taken_from_its_former_key_when_no_other_is_left() -> None:
    book = PortBook(1, 1)
    book.release(book.take(A, 0, anything), 0)
    assert book.take(B, RESTED_S, anything) == 1


def test_a_claim_ends() -> None:
    book = PortBook(1, 9)
    book.release(book.take(A, 0, anything), 0)
    assert book.take(B, UNCLAIMED_S, anything) == 1


def test_a_port_that_another_program_uses_is_passed_over() -> None:
    assert PortBook(1, 9).take(A, 0, lambda port: port > 4) == 5


def test_an_exhausted_range_is_told_with_its_bounds() -> None:
    book = PortBook(7, 8)
    book.take(A, 0, anything)
    book.take(B, 0, anything)
    with pytest.raises(Unavailable, match=r"no port from 7 to 8 is free for c#0 \(2 held"):
        book.take(ProcessKey("c", 0), 0, anything)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 400)), max_size=60))
def test_no_port_is_ever_in_two_hands_or_lost(turns: list[tuple[int, bool, float]]) -> None:
    book, now_s, held = PortBook(1, 6), 0.0, dict[int, ProcessKey]()
    for number, takes, wait_s in turns:
        now_s += wait_s
        key = ProcessKey(f"m{number}", 0)
        if takes:
            try:
                port = book.take(key, now_s, anything)
            except Unavailable:
                continue
            assert port not in held
            held[port] = key
        elif held:
            port = min(held)
            del held[port]
            book.release(port, now_s)
        assert book.held == set(held)
    for port in held:
        book.release(port, now_s)
    taken = {book.take(ProcessKey(str(n), 0), now_s + UNCLAIMED_S, anything) for n in range(6)}
    assert taken == {1, 2, 3, 4, 5, 6}
