"""Numbers within bounds and texts of known formats, in the form that llama.cpp reads (GBNF). Pure."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from pydantic import JsonValue

from remuda.core.errors import Invalid

DIGITS_MAX: Final = 18  # Of a whole number, so that it fits into 64 bits.
LARGEST: Final = 10**DIGITS_MAX - 1
_FRACTION: Final = '( "." [0-9]{1,20} )?'
_NO_FRACTION: Final = '( "." "0"{1,20} )?'

BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# February has 28 days here: a grammar cannot count leap years, and every text that it allows is a date.
_DATE: Final = (
    '[0-9]{4} "-" ( ( "0" [13578] | "1" [02] ) "-" ( "0" [1-9] | [12] [0-9] | "3" [01] )'
    ' | ( "0" [469] | "11" ) "-" ( "0" [1-9] | [12] [0-9] | "30" )'
    ' | "02-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ) )'
)
_HOUR_MINUTE: Final = '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9]'
_TIME: Final = f'{_HOUR_MINUTE} ":" [0-5] [0-9] ( "." [0-9]{{1,9}} )? ( "Z" | [-+] {_HOUR_MINUTE} )'
_HEX: Final = "[0-9a-f]"
FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
}

# What a schema can ask for and no grammar here says, with the values that ask for nothing.
_UNKEPT: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "pattern": (),
    "multipleOf": (),
    "uniqueItems": (False,),
    "contains": (True,),
    "minProperties": (0,),
    "maxProperties": (),
    "patternProperties": ({},),
    "propertyNames": (True,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "if": (),
    "not": (False,),
    "unevaluatedItems": (True, False),
    "$dynamicRef": (),
    "$recursiveRef": (),
}


class NumberRange(NamedTuple):
    """From `least` to `most`; None: without a bound. `exact` is False where more was asked for than that."""

    least: int | None
    most: int | None
    exact: bool = True

    @property
    def unbounded(self) -> bool:
        return self.least is None and self.most is None


def unkept(schema: Mapping[str, JsonValue]) -> str:
    """The first keyword of a schema that no grammar here keeps, whatever type it is of; empty: none."""
    if "properties" not in schema and schema.get("unevaluatedProperties", True) is not True:
        return "unevaluatedProperties"  # Objects whose properties are named here have no others anyway.
    return next((key for key, idle in _UNKEPT.items() if key in schema and schema[key] not in idle), "")


def is_of_type(value: JsonValue, kinds: Collection[str]) -> bool:
    match value:
        case None:
            return "null" in kinds
        case bool():
            return "boolean" in kinds
        case int() | float():
            return "number" in kinds or ("integer" in kinds and value == int(value))
        case str():
            return "string" in kinds
        case list():
            return "array" in kinds
    return "object" in kinds


def whole_range(schema: Mapping[str, JsonValue]) -> NumberRange:
    """Of whole numbers. Invalid for bounds that are no numbers, or that no number keeps."""
    lows, highs = _limits(schema)
    least = max((math.floor(low) + 1 if beyond else math.ceil(low) for low, beyond in lows), default=None)
    most = min((math.ceil(high) - 1 if beyond else math.floor(high) for high, beyond in highs), default=None)
    return _possible(least, most, exact=True)


def number_range(schema: Mapping[str, JsonValue]) -> NumberRange:
    """Of any numbers: bounds that are whole and may be reached are kept."""
    lows, highs = _limits(schema)
    kept = all(bound == int(bound) and not beyond for bound, beyond in (*lows, *highs))
    least = max((math.floor(low) for low, _ in lows), default=None)
    most = min((math.ceil(high) for high, _ in highs), default=None)
    return _possible(least, most, exact=kept)


def whole_numbers(wanted: NumberRange) -> str:
    """A grammar's text for the whole numbers in this range."""
    return " | ".join(_signed(wanted))


def numbers(wanted: NumberRange) -> str:
    """For the numbers in this range, written without an exponent."""
    ways = []
    if wanted.most is None or wanted.most >= 0:
        ways += [*_decimals(max(wanted.least or 0, 0), wanted.most)]
    if wanted.least is None or wanted.least < 0:
        least = None if wanted.least is None else -wanted.least
        ways += [f'"-" ( {way} )' for way in _decimals(max(-(wanted.most or 0), 0), least)]
    return " | ".join(ways)


def _limits(schema: Mapping[str, JsonValue]) -> tuple[list[tuple[float, bool]], list[tuple[float, bool]]]:
    """Lower and upper bounds, each with whether it must not be reached."""
    found: dict[str, float] = {}
    for key in BOUNDS:
        value = schema.get(key)
        if value is None or (isinstance(value, bool) and key.startswith("exclusive")):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Invalid(f"{key} must be a number")
        if not math.isfinite(value):
            raise Invalid(f"{key} is too large a number")
        found[key] = value
    return _side(schema, found, "Minimum"), _side(schema, found, "Maximum")


def _side(schema: Mapping[str, JsonValue], found: Mapping[str, float], side: str) -> list[tuple[float, bool]]:
    exclusive = f"exclusive{side}"  # A bound of its own, or in older schemas true: said of the other one.
    limits = [(found[exclusive], True)] if exclusive in found else []
    if side.lower() in found:
        limits.append((found[side.lower()], schema.get(exclusive) is True))
    return limits


def _possible(least: int | None, most: int | None, *, exact: bool) -> NumberRange:
    if least is not None and least <= -LARGEST:
        least = None
    if most is not None and most >= LARGEST:
        most = None
    beyond = (least is not None and least > LARGEST) or (most is not None and most < -LARGEST)
    if beyond or (least is not None and most is not None and least > most):
        raise Invalid(f"no number of at most {DIGITS_MAX} digits is within minimum and maximum")
    return NumberRange(least, most, exact)


def _signed(wanted: NumberRange) -> Iterator[str]:
    if wanted.least is None or wanted.least < 0:
        far = LARGEST if wanted.least is None else -wanted.least
        near = 1 if wanted.most is None or wanted.most >= 0 else -wanted.most
        yield f'"-" ( {" | ".join(_plain(near, far))} )'
    if wanted.most is None or wanted.most >= 0:
        yield from _plain(max(wanted.least or 0, 0), LARGEST if wanted.most is None else wanted.most)


def _decimals(least: int, most: int | None) -> Iterator[str]:
    """Numbers of 0 or more: a whole part below the upper bound with any fraction, or the bound itself."""
    far = LARGEST if most is None else most - 1
    if least <= far:
        yield f"( {' | '.join(_plain(least, far))} ) {_FRACTION}"
    if most is not None:
        yield f'"{most}" {_NO_FRACTION}'


def _plain(least: int, most: int) -> Iterator[str]:
    """Whole numbers of 0 or more, by how many digits they have."""
    if least == 0:
        yield '"0"'
        least = 1
    full: list[int] = []  # Numbers of digits of which every number is in the range.
    for digits in range(len(str(least)), len(str(most)) + 1):
        low, high = max(least, 10 ** (digits - 1)), min(most, 10**digits - 1)
        if low > high:
            continue
        if (low, high) == (10 ** (digits - 1), 10**digits - 1):
            full.append(digits)
        else:
            yield _between(str(low), str(high))
    if full:
        yield f"[1-9] [0-9]{{{full[0] - 1},{full[-1] - 1}}}"


def _between(low: str, high: str) -> str:
    """Texts of digits, all as long as these two."""
    if not low:
        return ""
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(high):
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" {_between(low[1:], high[1:])}'.rstrip()
    first, last = int(low[0]), int(high[0])
    ways = []
    if rest and low[1:] != "0" * rest:
        ways.append(f'"{first}" {_between(low[1:], "9" * rest)}')
        first += 1
    if rest and high[1:] != "9" * rest:
        ways.append(f'"{last}" {_between("0" * rest, high[1:])}')
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return f"( {' | '.join(ways)} )"
