"""Lengths of time on the command line."""

from datetime import timedelta

import click

from remuda.core import durations


def span_of(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """For `callback`: the span that an option names."""
    if value is None:
        return None
    try:
        return durations.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
