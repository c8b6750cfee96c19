"""Busy replicas that say nothing: when they are asked for a sign of life, and when that is over. Pure.

Busy is not dead: reading a long prompt on a slow machine takes minutes without a word. A process that is only
busy answers its health call; one that answers neither requests nor that, again and again, is wedged. Whatever
it says to any request begins the count anew. Some engines compute in the thread that answers such calls: they
have about as long as a stream may be silent, by default.
"""

from dataclasses import dataclass, replace
from typing import Final

UNANSWERED_MAX: Final = 8  # In a row.
_SILENT_SHARE: Final = 1 / 2  # Of the time between two checks, before it is asked.
_AGAIN_SHARE: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class Stall:
    """Of one replica with requests of this frontend, since `busy_since_s`."""

    busy_since_s: float
    asked_s: float = float("-inf")
    unanswered: int = 0

    @property
    def wedged(self) -> bool:
        return self.unanswered >= UNANSWERED_MAX


def looked(stall: Stall | None, silent_s: float, every_s: float, now_s: float) -> Stall:
    """After a look at a replica that has requests. `silent_s`: since it last said anything."""
    if stall is None:
        return Stall(now_s)
    return stall if silent_s >= every_s * _SILENT_SHARE else replace(stall, unanswered=0)


def is_to_be_asked(stall: Stall, silent_s: float, every_s: float, now_s: float) -> bool:
    quiet_s = min(now_s - stall.busy_since_s, silent_s)
    return quiet_s >= every_s * _SILENT_SHARE and now_s - stall.asked_s >= every_s * _AGAIN_SHARE


def asked(stall: Stall, answered: bool, now_s: float) -> Stall:
    return replace(stall, asked_s=now_s, unanswered=0 if answered else stall.unanswered + 1)
