"""ResponseStore."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text, update

from remuda.core.errors import Invalid
from remuda.inference.stored_responses import (
    CHAIN_MAX,
    PreviousResponseMissing,
    StoredResponse,
    as_seen,
    over_budget,
)
from remuda.store.database import Database
from remuda.store.responses import SqlResponseStore
from remuda.store.schema import responses

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
PLENTY = 1 << 30


def response(response_id: str = "resp_1", **changes: object) -> StoredResponse:
    whole = StoredResponse(
        id=response_id,
        owner="k1",
        model="m",
        status="completed",
        created=1,
        echo=b'"model":"m"',
        input='"h\u00e9\\u0000"'.encode(),
        output=b"[]",
        completed=2,
    )
    return msgspec.structs.replace(whole, **changes)


@dataclass
class Kept:
    store: SqlResponseStore
    database: Database

    async def age(self, response_id: str, **changes: timedelta) -> None:
        """Put instants of this row back by so much."""
        microseconds = {name: by // timedelta(microseconds=1) for name, by in changes.items()}
        values = {name: text(f"{name} - {by}") for name, by in microseconds.items()}

        def move(connection: Connection, now: datetime) -> None:
            connection.execute(update(responses).where(responses.c.id == response_id).values(values))

        await self.database.transact(move)


@pytest.fixture
def kept(database: Database) -> Kept:
    return Kept(SqlResponseStore(database), database)


async def test_a_response_is_kept_as_it_was_for_its_owner_alone(kept: Kept) -> None:
    await kept.store.add(response(), ())
    assert await kept.store.one("resp_1", "k1") == response()
    assert await kept.store.one("resp_1", "k2") is None
    assert await kept.store.one("resp_1", "") is None
    assert not await kept.store.delete("resp_1", "k2")
    assert await kept.store.delete("resp_1", "k1")
    assert await kept.store.one("resp_1", "k1") is None


async def test_a_conversation_is_read_from_its_beginning(kept: Kept) -> None:
    for number in range(3):
        previous = f"resp_{number - 1}" if number else ""
        await kept.store.add(response(f"resp_{number}", previous_id=previous), ())
    chain = await kept.store.chain("resp_2", "k1")
    assert [one.id for one in chain] == ["resp_0", "resp_1", "resp_2"]
    with pytest.raises(PreviousResponseMissing):
        await kept.store.chain("resp_2", "k2")
    await kept.store.delete("resp_0", "k1")
    with pytest.raises(PreviousResponseMissing, match="goes on"):
        await kept.store.chain("resp_2", "k1")


async def test_a_conversation_has_an_end(kept: Kept) -> None:
    await kept.store.add(response("resp_0", previous_id="resp_0"), ())
    with pytest.raises(Invalid, match=str(CHAIN_MAX)):
        await kept.store.chain("resp_0", "k1")


async def test_work_ends_once(kept: Kept) -> None:
    await kept.store.add(response(status="queued", background=True, completed=0), ())
    assert await kept.store.renew(["resp_1", "resp_2"]) == {"resp_1"}
    worked_on = await kept.store.one("resp_1", "k1")
    assert worked_on is not None
    assert worked_on.status == "in_progress"
    cancelled = await kept.store.cancel("resp_1", "k1")
    assert cancelled is not None
    assert cancelled.status == "cancelled"
    assert await kept.store.renew(["resp_1"]) == set()
    assert not await kept.store.finish(response(output=b"[1]"))
    found = await kept.store.one("resp_1", "k1")
    assert found is not None
    assert (found.status, found.output) == ("cancelled", b"[]")


async def test_what_has_ended_is_not_cancelled(kept: Kept) -> None:
    await kept.store.add(response(background=True), ())
    assert await kept.store.cancel("resp_1", "k1") == response(background=True)
    assert await kept.store.cancel("resp_1", "k2") is None


async def test_work_that_nobody_does_any_more_has_failed(kept: Kept) -> None:
    await kept.store.add(response(status="in_progress", background=True), ())
    await kept.age("resp_1", lease_until=timedelta(minutes=1))
    seen = await kept.store.one("resp_1", "k1")
    assert seen is not None
    assert (seen.status, b"went away" in seen.error) == ("failed", True)
    await kept.store.sweep(MONTH, PLENTY)
    assert await kept.store.renew(["resp_1"]) == set()
    assert await kept.store.one("resp_1", "k1") == seen


async def test_what_nobody_uses_goes_and_what_a_conversation_goes_on_from_stays(kept: Kept) -> None:
    for number in range(3):
        await kept.store.add(response(f"resp_{number}"), ())
        await kept.age(f"resp_{number}", used_at=2 * MONTH)
    await kept.store.add(response("resp_3", previous_id="resp_1"), ["resp_1"])
    assert await kept.store.sweep(MONTH, PLENTY) == 2
    assert await kept.store.one("resp_1", "k1") is not None
    assert await kept.store.one("resp_0", "k1") is None


async def test_the_oldest_of_an_owner_with_too_much_go(kept: Kept) -> None:
    size = response().kept_bytes
    for number in range(4):
        await kept.store.add(response(f"resp_{number}"), ())
        await kept.age(f"resp_{number}", used_at=timedelta(minutes=10 - number))
    await kept.store.add(response("other", owner="k2"), ())
    assert await kept.store.sweep(MONTH, 2 * size) == 2
    assert [await kept.store.one(f"resp_{number}", "k1") is None for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert await kept.store.one("other", "k2") is not None


@given(sizes=st.lists(st.integers(0, 50), max_size=20), bytes_max=st.integers(0, 200))
def test_the_newest_that_fit_stay(sizes: list[int], bytes_max: int) -> None:
    named = [(str(number), size) for number, size in enumerate(sizes)]
    gone = over_budget(named, bytes_max)
    stays = len(sizes) - len(gone)
    assert gone == [name for name, _ in named[stays:]]
    assert sum(sizes[:stays]) <= bytes_max
    assert not gone or sum(sizes[: stays + 1]) > bytes_max


@pytest.mark.parametrize(
    ("status", "lease", "seen"),
    [
        ("in_progress", NOW - timedelta(seconds=1), "failed"),
        ("in_progress", NOW, "in_progress"),
        ("queued", NOW - timedelta(days=1), "failed"),
        ("completed", NOW - timedelta(days=1), "completed"),
        ("in_progress", None, "in_progress"),
    ],
)
def test_a_lease_that_has_run_out_is_a_failure(status: str, lease: datetime | None, seen: str) -> None:
    assert as_seen(response(status=status, lease_until=lease), NOW).status == seen
