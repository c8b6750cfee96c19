"""What was used is written down once each, whatever the store does in between."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.accounts.usage import KeyUsage, UsageCounter, UsagePlace, UsageQuery, UsageRow
from remuda.core import limits
from remuda.core.errors import StoreUnusable
from tests.support.clocks import START

pytestmark = pytest.mark.anyio


class Store:
    """Implements UsageStore. May fail before it has written, or after."""

    def __init__(self) -> None:
        self.used: dict[UsagePlace, KeyUsage] = {}
        self.last = 0
        self.fails = Counter[str]()

    async def add(self, writer: str, batch: int, used: Mapping[UsagePlace, KeyUsage]) -> None:
        if self.fails["before"]:
            self.fails["before"] -= 1
            raise StoreUnusable("the database does not answer")
        if batch > self.last:
            self.last = batch
            for place, one in used.items():
                self.used.setdefault(place, KeyUsage()).add(one)
        if self.fails["after"]:
            self.fails["after"] -= 1
            raise StoreUnusable("the answer was lost")

    async def rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        return []

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.used.values())


async def test_requests_are_counted_by_key_model_node_and_day() -> None:
    store, today = Store(), START.date()
    tomorrow = today + timedelta(days=1)
    counter = UsageCounter(store, "here")
    counter.note(today, "k", "m", "gpu-1", (100, 20), costs=[("gpu-1", 300_000)])
    counter.note(today, "k", "m", "gpu-1", (50, 0), failed=True)
    counter.note(tomorrow, "k", "m", "gpu-1", (1, 1))
    await counter.write()
    assert store.used == {
        UsagePlace(today, "k", "m", "gpu-1"): KeyUsage(2, 1, 150, 20, 300_000),
        UsagePlace(tomorrow, "k", "m", "gpu-1"): KeyUsage(1, 0, 1, 1, 0),
    }


async def test_what_a_server_was_paid_that_did_not_answer_is_counted_for_it() -> None:
    store, today = Store(), START.date()
    counter = UsageCounter(store, "here")
    counter.note(today, "k", "m", "rack", (100, 20), costs=[("cloud", 7), ("rack", 5)])
    await counter.write()
    assert store.used == {
        UsagePlace(today, "k", "m", "cloud"): KeyUsage(cost=7),
        UsagePlace(today, "k", "m", "rack"): KeyUsage(1, 0, 100, 20, 5),
    }


async def _played(steps: list[str]) -> tuple[int, int]:
    """How many requests there were, and how many were written down."""
    store = Store()
    counter, noted = UsageCounter(store, "here"), 0
    for step in steps:
        if step == "write":
            with suppress(StoreUnusable):
                await counter.write()
        elif step == "note":
            counter.note(START.date(), "k", f"m{noted % 3}", "", (1, 1))
            noted += 1
        else:
            store.fails[step] += 1
    store.fails.clear()
    await counter.write()
    return noted, store.requests


@given(st.lists(st.sampled_from(["note", "write", "before", "after"]), max_size=40))
async def test_nothing_is_lost_and_nothing_counted_twice(steps: list[str]) -> None:
    noted, written = await _played(steps)
    assert written == noted


async def test_while_the_store_is_away_for_long_only_the_key_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "USAGE_WAITING_MAX", 10)
    store = Store()
    counter = UsageCounter(store, "here")
    for number in range(100):
        counter.note(START.date(), "k", f"m{number}", "", (1, 1))
    await counter.write()
    assert store.requests == 100
    assert len(store.used) == 11
