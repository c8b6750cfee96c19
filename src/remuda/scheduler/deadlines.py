"""How long a load may take. Work that moves bytes has no fixed end: each byte pushes the deadline on, up to a
most. Pure."""

from datetime import timedelta
from typing import Final

_GIB: Final = 1 << 30
_LOAD_BASE: Final = timedelta(minutes=5)
_LOAD_PER_GIB: Final = timedelta(seconds=20)
_LOAD_MOST: Final = timedelta(hours=6)
_STALL: Final = timedelta(minutes=5)
_LEAST: Final = timedelta(minutes=25)
WHOLE_MOST: Final = timedelta(hours=24)


def load_limit(weights_bytes: int, given: timedelta | None = None) -> timedelta:
    """For the backend's own load call. A limit that was given wins, be it shorter or longer."""
    if given is not None:
        return given
    return min(_LOAD_BASE + _LOAD_PER_GIB * (weights_bytes / _GIB), _LOAD_MOST)


def first_limit(install: timedelta, load: timedelta) -> timedelta:
    """For everything before the load call, as long as nothing is known to move."""
    return max(install + load + _STALL, _LEAST)


def pushed(now_s: float, expires_s: float, began_s: float) -> float:
    """The deadline after something has moved: never earlier than before, and never later than a day after the
    beginning."""
    return min(max(expires_s, now_s + _STALL.total_seconds()), began_s + WHOLE_MOST.total_seconds())


def load_entered(now_s: float, expires_s: float, load: timedelta) -> float:
    """The deadline once the load call is made: its own limit and a little."""
    return max(expires_s, now_s + (load + _STALL).total_seconds())
