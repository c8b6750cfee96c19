"""Sign-in for browsers: a cookie that stands for an API key, signed with the cluster's cookie key, so that it
opens every frontend. It names the key and holds no secret: a key that is revoked ends its sessions. Each
session has an id, which its renewed cookies keep, so that signing out ends it wherever copies of them are.

A browser sends cookies by itself, also where another web page made it call. So a request that a cookie opens
must show that it comes from the console's own page: by its origin, or by a header that no other page can set.
"""

import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.cookies import CookieError, SimpleCookie
from typing import Final

from remuda.accounts.ended_sessions import EndedSessions
from remuda.accounts.keys import ApiKey, KeyRing
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError

COOKIE: Final = "remuda_session"
CONSOLE_HEADER: Final = "x-remuda-console"
IDLE: Final = timedelta(hours=12)  # Without a visit for so long, a session ends.
WHOLE: Final = timedelta(days=7)  # However often it is renewed.
RENEWED_AFTER: Final = timedelta(minutes=10)
_AHEAD: Final = timedelta(minutes=5)  # Clocks of frontends differ.
_ID_BYTES: Final = 15
_COOKIE_CHARS_MAX: Final = 200
FAILURES_MAX: Final = 10  # Of one address, within `FAILURES_S`.
FAILURES_S: Final = 300.0
_ADDRESSES_MAX: Final = 1000


class TooManyFailures(RemudaError):
    """Too many sign-ins failed lately; no key is looked at."""

    code = "too_many_failures"
    http_status = 429
    retryable = True


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    key: ApiKey
    begun: datetime
    renewed: datetime


class Sessions:
    """What cookies stand for. `cookie_key` is the cluster's."""

    def __init__(
        self, cookie_key: str, keyring: KeyRing, ended: EndedSessions, clock: Clock, entropy: Entropy
    ) -> None:
        self._cookie_key = cookie_key.encode()
        self._keyring = keyring
        self._ended = ended
        self._clock = clock
        self._entropy = entropy

    def begin(self, key: ApiKey) -> str:
        """A cookie for a session of this key."""
        now = self._clock.now()
        return self._cookie(key.id, self._entropy.token(_ID_BYTES), now, now)

    async def end(self, session: Session) -> None:
        """No cookie of it opens anything from now on, here, and within a second on the other frontends."""
        await self._ended.end(session.id, session.begun + WHOLE)

    def renewed(self, session: Session) -> str:
        """A cookie for the same session, to be sent where it is time; else empty."""
        now = self._clock.now()
        if now - session.renewed < RENEWED_AFTER:
            return ""
        return self._cookie(session.key.id, session.id, session.begun, now)

    def lasts(self, session: Session) -> timedelta:
        """How long its cookie is good for, from now on."""
        now = self._clock.now()
        return min(session.renewed + IDLE, session.begun + WHOLE) - now

    def of(self, cookie: str) -> Session | None:
        """None for one that is not ours or has expired, that was signed out of, or whose key was revoked."""
        signed, _, signature = cookie.rpartition(".")
        if len(cookie) > _COOKIE_CHARS_MAX or not hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._signature(signed).encode()
        ):
            return None
        try:
            key_id, session_id, begun_s, renewed_s = signed.rsplit(".", 3)
        except ValueError:  # Of a release whose sessions had no ids.
            return None
        now = self._clock.now()
        begun, renewed = (datetime.fromtimestamp(int(s), now.tzinfo) for s in (begun_s, renewed_s))
        if now - renewed >= IDLE or now - begun >= WHOLE or renewed - now > _AHEAD:
            return None
        if session_id in self._ended:
            return None
        key = self._keyring.by_id(key_id)
        return None if key is None else Session(session_id, key, begun, renewed)

    def _cookie(self, key_id: str, session_id: str, begun: datetime, renewed: datetime) -> str:
        signed = f"{key_id}.{session_id}.{int(begun.timestamp())}.{int(renewed.timestamp())}"
        return f"{signed}.{self._signature(signed)}"

    def _signature(self, signed: str) -> str:
        return hmac.new(self._cookie_key, f"session.{signed}".encode(), hashlib.sha256).hexdigest()


def cookie_in(header: str) -> str:
    """Ours, of a `Cookie` header; empty: it is not there."""
    if COOKIE not in header:
        return ""
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def is_from_console(headers: Mapping[str, str], origin_problem: Callable[[str, str | None], str]) -> bool:
    """Whether a request comes from a page of this frontend. Another page cannot set the header without asking
    first, which is allowed to those of chosen origins alone, whose cookies are taken away."""
    if headers.get(CONSOLE_HEADER) == "1":
        return True
    origin = headers.get("origin")
    return origin is not None and not origin_problem(headers.get("host", ""), origin)


class FailureCount:
    """Of failed sign-ins, by the address they came from."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, source: str) -> None:
        """TooManyFailures while there were too many."""
        failed = self._failed.get(source)
        since_s = self._clock.monotonic() - FAILURES_S
        if failed is not None and len(failed) == FAILURES_MAX and failed[0] > since_s:
            raise TooManyFailures(
                f"{FAILURES_MAX} sign-ins from {source or 'this address'} failed within "
                f"{FAILURES_S / 60:.0f} minutes",
                hint=f"try again in {failed[0] - since_s:.0f} s",
            )

    def failed(self, source: str) -> None:
        self._failed.setdefault(source, deque(maxlen=FAILURES_MAX)).append(self._clock.monotonic())
        self._failed.move_to_end(source)
        while len(self._failed) > _ADDRESSES_MAX:
            self._failed.popitem(last=False)
