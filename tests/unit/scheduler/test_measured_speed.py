"""What is expected of a node's speed, from what was seen of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.scheduler.measured_speed import (
    Expected,
    MeasuredRate,
    Rate,
    RateBook,
    RateKey,
    is_news,
    moved,
    speed_class,
)

GB = 1 << 30
NODE = NodeId("node-1")


def tokens(model: str, per_s: float, gb: int = 4, backend: str = "llama-cpp") -> MeasuredRate:
    return MeasuredRate(RateKey(Rate.TOKENS, NODE, model), per_s, backend, gb * GB)


def expected(book: RateBook, model: str, gb: int) -> Expected | None:
    return book.tokens_per_s(NODE, model, "llama-cpp", gb * GB)


def test_a_model_that_was_measured_is_expected_to_be_as_fast_again() -> None:
    assert expected(RateBook.of([tokens("qwen", 50), tokens("phi", 9)]), "qwen", 4) == Expected(50)


def test_another_of_its_size_is_expected_to_be_as_fast_by_its_weights() -> None:
    book = RateBook.of([tokens("near", 50, 4), tokens("far", 9, 20)])
    assert expected(book, "qwen", 8) == Expected(25, "near")


@pytest.mark.parametrize("other", [tokens("huge", 1, 70), tokens("other", 50, backend="vllm")])
def test_what_is_not_like_it_says_nothing(other: MeasuredRate) -> None:
    assert expected(RateBook.of([other]), "qwen", 4) is None


def test_of_unknown_size_only_the_model_itself_counts() -> None:
    assert expected(RateBook.of([tokens("near", 50)]), "qwen", 0) is None


def test_bytes_move_as_fast_as_those_of_other_models_did() -> None:
    rates = [MeasuredRate(RateKey(Rate.LOAD, NODE, name), per_s) for name, per_s in (("a", 1), ("b", 5))]
    book = RateBook.of([*rates, MeasuredRate(RateKey(Rate.COPY, NODE, "a"), 99)])
    assert book.bytes_per_s(Rate.LOAD, NODE, "c") == 3
    assert book.bytes_per_s(Rate.LOAD, NODE, "b") == 5
    assert book.bytes_per_s(Rate.LOAD, NodeId("other"), "b") is None


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_what_is_known_moves_towards_what_is_seen_and_never_beyond(known: float, seen: float) -> None:
    assert min(known, seen) <= moved(known, seen) <= max(known, seen)
    assert moved(None, seen) == seen


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.integers(0, 20))
def test_faster_or_less_busy_is_never_a_lower_class(one: float, other: float, busy: int) -> None:
    slower, faster = sorted((one, other))
    assert speed_class(slower, busy) <= speed_class(faster, busy)
    assert speed_class(one, busy + 1) <= speed_class(one, busy)


def test_little_changes_are_no_news() -> None:
    assert is_news(None, 50)
    assert is_news(50, 58)
    assert not is_news(50, 53)
