"""How the limits of a key stand, and that one is reached, as its callers see it. Pure."""

from datetime import datetime

from msgspec import Struct

from remuda.accounts.budgets import LimitKind
from remuda.core.errors import RemudaError


class LimitState(Struct, frozen=True):
    """How one limit stands, for headers. `resets_in_s`: until all of it is there again. Made for every
    request, for which a NamedTuple takes twice as long."""

    of_requests: bool  # Else of tokens.
    limit: int
    remaining: int
    resets_in_s: float
    resets_at: datetime


class LimitReached(RemudaError):
    """A key may take no more for now. `retry_after_s`: then it may."""

    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True

    def __init__(self, message: str, kind: LimitKind, retry_after_s: int, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.retry_after_s = retry_after_s


class QuotaUsedUp(LimitReached):
    """What a key may take in a day or a month is used up: a client need not try again soon."""

    code = "insufficient_quota"
    retryable = False
