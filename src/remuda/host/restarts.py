"""Restart or give up, from how long a process lived. Pure: the caller measures and waits."""

from dataclasses import dataclass
from datetime import timedelta

_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays double from `first` to `most` while lives stay short; a life of `healthy_after` starts over.

    `give_up_after` short lives in a row end the attempts; None never gives up.
    """

    first: timedelta
    most: timedelta
    healthy_after: timedelta
    give_up_after: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    delay: timedelta
    short_lives: int
    """Short lives in a row so far; the caller hands it back at the next exit."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def after_exit(policy: RestartPolicy, short_lives: int, lived: timedelta) -> Restart | GiveUp:
    """What to do about a process that lived for `lived`, after `short_lives` short lives in a row."""
    if lived >= policy.healthy_after:
        return Restart(policy.first, short_lives=0)
    short_lives += 1
    if policy.give_up_after is not None and short_lives >= policy.give_up_after:
        return GiveUp(f"ended {short_lives} times in a row within {policy.healthy_after.total_seconds():g} s")
    doublings = min(short_lives - 1, _DOUBLINGS_MAX)
    return Restart(min(policy.first * (1 << doublings), policy.most), short_lives)
