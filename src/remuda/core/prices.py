"""What tokens cost, exactly: prices per million tokens, and amounts in whole billionths of the currency that
the prices are in. Pure. Rounding is always up, so that sums of costs are never below what they stand for."""

from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from remuda.core.errors import Invalid

Money = int
"""Money, in billionths of the currency."""

UNIT: Final = 10**9
AMOUNT_MAX: Final = 10**9 * UNIT
_MILLION: Final = 10**6
_TEXT_MAX: Final = 40


class TokenPrice(NamedTuple):
    """What a million tokens cost, read and written."""

    prompt: Money
    completion: Money

    def cost(self, prompt_tokens: int, completion_tokens: int) -> Money:
        """Of so many tokens, rounded up to the next billionth."""
        return -(-(prompt_tokens * self.prompt + completion_tokens * self.completion) // _MILLION)

    def __str__(self) -> str:
        return f"{exact(self.prompt)}/{exact(self.completion)}"


def parse_price(text: str) -> TokenPrice:
    """From PROMPT/COMPLETION, such as 2.5/10. Invalid for anything else."""
    prompt, slash, completion = text.partition("/")
    if not slash:
        raise Invalid(
            f"{text[:_TEXT_MAX]!r} is not a price",
            hint="write what a million tokens cost, read and written, such as 2.5/10",
        )
    return TokenPrice(parse_amount(prompt), parse_amount(completion))


def parse_amount(text: str) -> Money:
    """From a decimal number that is not negative. Invalid for anything else; fractions of a billionth are
    rounded up."""
    try:
        value = Decimal(text.strip()) if len(text) <= _TEXT_MAX else Decimal("NaN")
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or not 0 <= value <= AMOUNT_MAX // UNIT:
        raise Invalid(
            f"{text[:_TEXT_MAX]!r} is not an amount of money",
            hint=f"write a number from 0 to {AMOUNT_MAX // UNIT}, such as 0.15 or 20",
        )
    whole = value * UNIT
    return int(whole.to_integral_value(rounding="ROUND_CEILING"))


def exact(amount: Money) -> str:
    """As a decimal number, without a loss."""
    whole, rest = divmod(abs(amount), UNIT)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}.{rest:09}".rstrip("0").rstrip(".") if rest else f"{sign}{whole}"


def rounded(amount: Money) -> str:
    """For people: cents, and of less than one the first two digits that are not 0."""
    if amount == 0 or abs(amount) >= UNIT // 100:
        return f"{amount / UNIT:.2f}"
    return f"{amount / UNIT:.9f}"[: _first_digit(abs(amount)) + 2 + (amount < 0)].rstrip("0")


def _first_digit(amount: Money) -> int:
    """The place of the first digit that is not 0, in a text of nine decimals."""
    return 2 + 9 - len(str(amount))
