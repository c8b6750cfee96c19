"""Long computations in slices, so that the caller can give others a turn, and within a budget. Pure.

Parsing and rendering what a client sent is work whose length the client decides. Such work is written as a
generator that yields whenever its budget says that a slice is over, and returns its result.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from remuda.core.errors import Invalid

T = TypeVar("T")
Sliced = Generator[None, None, T]

SLICE_STEPS: Final = 1000  # One step is meant to take a microsecond or two.


class Budget:
    """What one computation may cost, in steps. Everything it does is charged: nodes, references, bytes."""

    def __init__(self, what: str, steps_max: int, slice_steps: int = SLICE_STEPS) -> None:
        self.spent = 0
        self._what = what
        self._steps_max = steps_max
        self._slice_steps = slice_steps
        self._pause_at = slice_steps

    def spend(self, steps: int = 1) -> bool:
        """Charge, and say whether the slice is over, so that it is time to yield."""
        self.charge(steps)
        if self.spent < self._pause_at:
            return False
        self._pause_at = self.spent + self._slice_steps
        return True

    def charge(self, steps: int) -> None:
        """Invalid when the budget is used up. To be called before the work: too much is never begun."""
        self.spent += steps
        if self.spent > self._steps_max:
            raise Invalid(
                f"{self._what} is too complex: working on it takes more than {self._steps_max} steps",
                hint="make it smaller: fewer and shorter parts, less repetition, fewer references",
            )


def at_once(work: Sliced[T]) -> T:
    """The result, computed in one go."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def slice_count(work: Sliced[T]) -> tuple[T, int]:
    """The result, and in how many slices it came."""
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result, count
        count += 1
