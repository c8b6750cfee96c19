"""Prices and amounts: read exactly, added exactly, rounded up."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.core.prices import AMOUNT_MAX, UNIT, TokenPrice, exact, parse_amount, parse_price, rounded

amounts = st.integers(0, AMOUNT_MAX)
tokens = st.integers(0, 10**9)


def test_a_price_is_what_a_million_tokens_cost() -> None:
    price = parse_price("0.15/0.60")
    assert price == TokenPrice(150_000_000, 600_000_000)
    assert price.cost(1_000_000, 500_000) == parse_amount("0.45")
    assert str(price) == "0.15/0.6"


@given(amounts, amounts, tokens, tokens)
def test_a_cost_is_rounded_up_and_by_less_than_a_billionth(p: int, c: int, read: int, written: int) -> None:
    true = Fraction(p * read + c * written, 10**6)
    assert true <= TokenPrice(p, c).cost(read, written) < true + 1


@given(amounts)
def test_an_amount_survives_being_written_and_read(amount: int) -> None:
    assert parse_amount(exact(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0.00"),
        (20 * UNIT, "20.00"),
        (UNIT // 100, "0.01"),
        (12_345_678_901, "12.35"),
        (2_345_678, "0.0023"),
        (1_000_000, "0.001"),
        (7, "0.000000007"),
    ],
)
def test_people_read_cents_and_of_less_the_first_two_digits(amount: int, shown: str) -> None:
    assert rounded(amount) == shown


@pytest.mark.parametrize("text", ["", "2.5", "a/b", "1/-1", "nan/1", "1/inf", "1e99/1", "1/" + "0" * 50])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not"):
        parse_price(text)
