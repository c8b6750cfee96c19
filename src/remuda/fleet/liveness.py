"""How long a node has been silent. Only time in which some frontend could have heard it counts:
while store or bus are down, or no frontend runs, no node's silence grows. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, order=True)
class ListeningPeriod:
    """One frontend heard the fleet from `since` until `until`, without a gap."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class ListeningPeriods:
    """The times at which at least one frontend was listening, merged and in order."""

    spans: tuple[ListeningPeriod, ...] = ()

    @staticmethod
    def of(spans: Iterable[ListeningPeriod]) -> "ListeningPeriods":
        merged: list[ListeningPeriod] = []
        for span in sorted(spans):
            if merged and span.since <= merged[-1].until:
                merged[-1] = ListeningPeriod(merged[-1].since, max(merged[-1].until, span.until))
            else:
                merged.append(span)
        return ListeningPeriods(tuple(merged))

    def silence(self, last_heard: datetime, now: datetime) -> timedelta:
        """Time spent listening since `last_heard`. Where the clock was set back, spans may reach beyond
        `now`: what lies there was before, and says nothing about a heartbeat that came since."""
        total = timedelta()
        for span in reversed(self.spans):
            if span.until <= last_heard:
                break
            heard = min(span.until, now) - max(span.since, last_heard)
            total += max(heard, timedelta())
        return total
