"""Durations as Go writes them (`10s`, `1m30s`, `500ms`): settings are shared with Go peers. Pure."""

import re
from datetime import timedelta

ACCEPTED = "a duration such as 500ms, 10s, 1m30s or 24h"
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse(text: str) -> timedelta:
    """The span that `text` names; ValueError for anything else, a missing unit included."""
    parts = _PART.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise ValueError(f"{text!r} is not {ACCEPTED}")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError:
        raise ValueError(f"{text!r} is too long a duration") from None


def render(span: timedelta) -> str:
    """The shortest text that `parse` reads back as `span`."""
    micros = round(span.total_seconds() * 1e6)
    for unit, size in (("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000)):
        if micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us"
