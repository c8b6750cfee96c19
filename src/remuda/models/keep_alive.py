"""How long an idle model stays loaded, as people write it: a duration, 0 or -1. Pure."""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

from remuda.core import durations

FOR_EVER: Final = timedelta(seconds=-1)
ACCEPTED: Final = f"{durations.ACCEPTED}; 0 for no longer than its requests take, -1 for ever"


def parse(text: str) -> timedelta:
    """ValueError for anything else; a number without a unit included, but for those two."""
    match text.strip():
        case "0":
            return timedelta()
        case "-1":
            return FOR_EVER
        case written:
            return durations.parse(written)


def render(keep: timedelta) -> str:
    return "-1" if keep < timedelta() else durations.render(keep)


def _kept(value: object) -> object:
    return parse(value) if isinstance(value, str) else value


KeepAlive = Annotated[timedelta, BeforeValidator(_kept), PlainSerializer(render)]
"""Less than nothing is for ever."""
