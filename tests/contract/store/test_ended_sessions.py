"""EndedSessionStore."""

from datetime import timedelta

import pytest

from remuda.core import limits
from remuda.core.clock import SystemClock
from remuda.core.errors import Unavailable
from remuda.store.database import Database
from remuda.store.ended_sessions import SqlEndedSessionStore
from remuda.store.schema import ended_sessions
from tests.contract.store.builders import row_count

pytestmark = pytest.mark.anyio
A_WEEK = timedelta(days=7)


async def test_an_ended_session_is_known_until_it_would_have_ended_by_itself(database: Database) -> None:
    store, now = SqlEndedSessionStore(database), SystemClock().now()
    await store.end_session("over", now - timedelta(seconds=1))
    assert await store.ended_sessions() == {}
    await store.end_session("one", now + A_WEEK)
    await store.end_session("one", now + A_WEEK)
    assert list(await store.ended_sessions()) == ["one"]
    assert await row_count(database, ended_sessions) == 1


async def test_beyond_the_limit_one_is_told_what_ends_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ENDED_SESSIONS_MAX", 1)
    store, until = SqlEndedSessionStore(database), SystemClock().now() + A_WEEK
    await store.end_session("one", until)
    with pytest.raises(Unavailable, match="1 others were ended") as refused:
        await store.end_session("two", until)
    assert "revoke its key" in refused.value.hint
