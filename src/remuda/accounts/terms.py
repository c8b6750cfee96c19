"""What a key may take, and how. Pure."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a key may take, and how. A limit of 0 is none. Stored as JSON, so each field has a default."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    tokens_per_day: int = 0
    tokens_per_month: int = 0
    expires_at: datetime | None = None  # None: never.
    weight: int = 1  # Its share of replicas while requests of several keys wait.
    batch: bool = False  # It gets what other keys leave idle.
    may_route: bool = False  # Its requests may name the nodes they prefer or avoid.

    @property
    def limited(self) -> bool:
        return bool(
            self.requests_per_minute
            or self.tokens_per_minute
            or self.concurrent_requests
            or self.tokens_per_day
            or self.tokens_per_month
        )
