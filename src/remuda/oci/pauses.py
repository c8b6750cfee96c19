"""Tells the caller that began a fetch, however deep it is, that it waits before its next attempt."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class FetchPause(NamedTuple):
    """`attempt` is the one that comes next, of as many as may fail in a row."""

    reason: str
    attempt: int
    attempts_max: int

    def __str__(self) -> str:
        return f"{self.reason}; trying again ({self.attempt} of {self.attempts_max})"


OnPause = Callable[[FetchPause | None], None]
"""None: the pause is over."""


def ignore_pause(pause: FetchPause | None) -> None:
    pass


_LISTENER: Final[ContextVar[OnPause]] = ContextVar("fetch_pause_listener", default=ignore_pause)


@contextmanager
def telling_pauses(on_pause: OnPause) -> Iterator[None]:
    """What is fetched within the block, by tasks that it starts too."""
    before = _LISTENER.set(on_pause)
    try:
        yield
    finally:
        _LISTENER.reset(before)


@contextmanager
def paused(pause: FetchPause) -> Iterator[None]:
    told = _LISTENER.get()
    told(pause)
    try:
        yield
    finally:
        told(None)
