"""How long a session lasts: it is renewed by visits, ends without them, and ends in any case after a week."""

from datetime import timedelta

import pytest

from remuda.accounts.ended_sessions import EndedSessions
from remuda.accounts.keys import ApiKey, KeyRing, KeyScope
from remuda.core.entropy import SeededEntropy
from remuda.gateway.sessions import IDLE, RENEWED_AFTER, WHOLE, Sessions
from tests.support.scripted_upstreams import EndedSessionsInMemory, KeysInMemory
from tests.unit.router.frontends import HandClock

pytestmark = pytest.mark.anyio
A_SECOND = timedelta(seconds=1)


class Signed:
    """A session, and a clock that the test turns."""

    def __init__(self, clock: HandClock, keyring: KeyRing, key: ApiKey) -> None:
        self.clock, self.keyring = clock, keyring
        self.store = EndedSessionsInMemory()
        self.sessions = self.frontend()
        self.cookie = self.sessions.begin(key)

    def frontend(self, cookie_key: str = "secret") -> Sessions:
        """One of them, with all that it knows by itself."""
        self.ended = EndedSessions(self.store, self.keyring.sessions_ended)
        return Sessions(cookie_key, self.keyring, self.ended, self.clock, SeededEntropy(2))

    def passes(self, time: timedelta) -> None:
        self.clock.passed_s += time.total_seconds()

    @property
    def holds(self) -> bool:
        return self.sessions.of(self.cookie) is not None

    def visit(self) -> bool:
        """Whether the cookie was renewed."""
        session = self.sessions.of(self.cookie)
        assert session is not None
        renewed = self.sessions.renewed(session)
        self.cookie = renewed or self.cookie
        return bool(renewed)


@pytest.fixture
async def signed() -> Signed:
    clock = HandClock()
    keyring = KeyRing(KeysInMemory(), clock, SeededEntropy(1))
    _, key = await keyring.create("someone", KeyScope.ADMIN)
    return Signed(clock, keyring, key)


async def test_a_session_without_visits_ends(signed: Signed) -> None:
    signed.passes(IDLE - A_SECOND)
    assert signed.holds
    signed.passes(A_SECOND)
    assert not signed.holds


async def test_a_visit_renews_it_but_not_each_one_does(signed: Signed) -> None:
    signed.passes(RENEWED_AFTER - A_SECOND)
    assert not signed.visit()
    signed.passes(A_SECOND)
    assert signed.visit()
    signed.passes(IDLE - A_SECOND)
    assert signed.holds


async def test_however_often_it_is_renewed_it_ends_after_a_week(signed: Signed) -> None:
    left = WHOLE
    while left > timedelta(hours=1):
        signed.passes(timedelta(hours=1))
        left -= timedelta(hours=1)
        signed.visit()
    session = signed.sessions.of(signed.cookie)
    assert session is not None
    assert signed.sessions.lasts(session) == left
    signed.passes(left)
    assert not signed.holds


async def test_a_cookie_from_the_future_opens_nothing(signed: Signed) -> None:
    """Clocks of frontends differ by minutes; one that was set back by an hour takes no cookies from then."""
    signed.passes(timedelta(minutes=-4))
    assert signed.holds
    signed.passes(timedelta(minutes=-2))
    assert not signed.holds


async def test_the_cookie_of_another_cluster_opens_nothing(signed: Signed) -> None:
    other = signed.frontend("another secret")
    assert other.of(signed.cookie) is None


async def test_signing_out_ends_a_session_with_all_its_cookies_and_no_other(signed: Signed) -> None:
    first = signed.cookie
    session = signed.sessions.of(first)
    assert session is not None
    other = signed.sessions.begin(session.key)
    signed.passes(RENEWED_AFTER)
    assert signed.visit()
    looked = signed.keyring.changed
    await signed.sessions.end(session)
    assert [signed.sessions.of(cookie) for cookie in (first, signed.cookie)] == [None, None]
    assert looked.is_set(), "streams that the session has opened look again"
    assert signed.sessions.of(other) is not None


async def test_other_frontends_hear_of_it_from_the_store(signed: Signed) -> None:
    session = signed.sessions.of(signed.cookie)
    assert session is not None
    await signed.sessions.end(session)
    elsewhere = signed.frontend()
    assert elsewhere.of(signed.cookie) is not None
    await signed.ended.refresh()
    assert elsewhere.of(signed.cookie) is None
