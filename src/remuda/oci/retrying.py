"""Retries of requests to servers that fail: how often and how long, honouring Retry-After."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import anyio
import structlog

from remuda.core.entropy import Entropy
from remuda.core.retry import Backoff
from remuda.oci import limits
from remuda.oci.errors import RegistryBusy, RegistryFailed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = limits.ATTEMPTS_MAX
    backoff: Backoff = limits.BACKOFF
    retry_after_max: timedelta = limits.RETRY_AFTER_MAX


class RetryBudget:
    """Of one piece of work. Attempts that bring something forward do not wear it out."""

    def __init__(self, policy: RetryPolicy, entropy: Entropy, what: str) -> None:
        self._policy = policy
        self._entropy = entropy
        self._what = what
        self._failures = 0

    def renew(self) -> None:
        self._failures = 0

    async def pause(self, failure: RegistryFailed) -> None:
        """Wait before the next attempt; raises `failure` when there should be none."""
        self._failures += 1
        wait = self._policy.backoff.delay(self._failures, self._entropy.fraction())
        asked = failure.retry_after if isinstance(failure, RegistryBusy) else None
        if asked is not None and asked > self._policy.retry_after_max:
            raise RegistryFailed(
                f"{failure.message}, and asks to wait {asked.total_seconds():.0f} s", hint="try again then"
            ) from failure
        if self._failures >= self._policy.attempts_max:
            raise failure
        pause_s = max(wait, asked or timedelta()).total_seconds()
        log.info("fetch_paused", what=self._what, reason=failure.message, pause_s=round(pause_s, 3))
        await anyio.sleep(pause_s)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Seconds or a date; None when it is absent or neither."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return timedelta(seconds=min(int(text.strip()[:9]), 10**9))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(at.replace(tzinfo=at.tzinfo or UTC) - now, timedelta())
