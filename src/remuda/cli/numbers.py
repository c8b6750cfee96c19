"""Numbers and durations on the command line, refused in plain words."""

from datetime import timedelta

import click

from remuda.core import durations


class WholeNumber(click.ParamType[int]):
    """From `least` to `most`, both of them included."""

    name = "N"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is not {self._wanted()}.", param, ctx)
        if number < self._least or (self._most is not None and number > self._most):
            self.fail(f"{number} is not {self._wanted()}.", param, ctx)
        return number

    def _wanted(self) -> str:
        if self._most is None:
            return f"a whole number of {self._least} or more"
        return f"a whole number from {self._least} to {self._most}"


class Amount(click.ParamType[float]):
    """A number of 0 or more."""

    name = "N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{str(value)!r} is not a number of 0 or more.", param, ctx)
        return number


def span_of(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """For `callback`: the span that an option names."""
    if value is None:
        return None
    try:
        return durations.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
