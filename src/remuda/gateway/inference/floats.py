"""Numbers of 32 bits as people write them. Pure."""

import array
from typing import Final

from remuda.inference.answers import Vector

_FLOAT_DIGITS: Final = 7  # Nearly always enough for a number of 32 bits; nine always are.


def short_floats(vector: Vector) -> list[float]:
    """Numbers of 32 bits as the shortest ones that stand for the same: 0.01, not 0.009999999776482582."""
    exact = array.array("f", vector)
    short = [float(f"{value:.{_FLOAT_DIGITS}g}") for value in exact]
    for index, (value, rounded) in enumerate(zip(exact, array.array("f", short), strict=True)):
        if value != rounded:  # A digit or two are missing.
            eight = float(f"{value:.{_FLOAT_DIGITS + 1}g}")
            same = array.array("f", (eight,))[0] == value
            short[index] = eight if same else float(f"{value:.{_FLOAT_DIGITS + 2}g}")
    return short
