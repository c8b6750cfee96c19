"""What frontends know of each other's requests: soon enough to choose by, and surely enough to stop by."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType

import anyio
import pytest

from remuda.core.ids import FrontendId, NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.live_table import Tables
from remuda.router.table import Route, RoutedModel, Table
from remuda.router.usage import PeerLoads, RequestLedger, RequestsHeld
from remuda.wire import subjects
from remuda.wire.codec import decode
from tests.support.shared_lines import SharedLines
from tests.support.waiting import wait_until
from tests.unit.router.frontends import HandClock
from tests.unit.router.holding import holding

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = FrontendId("f-1"), FrontendId("f-2"), FrontendId("f-3")
KEY = ReplicaKey("qwen", 0)
ROUTE = Route(KEY, NodeId("n"), "gpu-1", ReplicaEndpoint("10.0.0.5:50052"))


def a_table(change: int) -> Table:
    return Table(MappingProxyType({"qwen": RoutedModel(ModelConfig(name="qwen"), (ROUTE,))}), change)


class Frontend:
    def __init__(self, name: FrontendId, lines: SharedLines, every_s: float = 0.02) -> None:
        self.tables, self.ledger, self.clock = Tables(), RequestLedger(), HandClock()
        self.tables.replace(a_table(1))
        self.loads = PeerLoads(
            name,
            self.tables,
            self.ledger,
            lines,
            self.clock,
            listening=self._listening,
            every_s=every_s,
        )

    async def _listening(self) -> Collection[FrontendId]:
        return {TWO, THREE}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.loads.run)
            yield
            tasks.cancel_scope.cancel()


Pair = tuple[Frontend, Frontend, SharedLines]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    lines = SharedLines()
    one, two = Frontend(ONE, lines), Frontend(TWO, lines)
    async with one.running(), two.running():
        yield one, two, lines


def said(lines: SharedLines, frontend: FrontendId) -> list[RequestsHeld]:
    messages = [decode(RequestsHeld, sent.payload) for sent in lines.sent]
    return [message for message in messages if message.frontend == frontend]


async def test_requests_of_one_frontend_count_on_the_other(pair: Pair) -> None:
    one, two, _ = pair
    with holding(one.ledger, ROUTE), holding(one.ledger, ROUTE):
        await wait_until(lambda: two.ledger.load(ROUTE) == 2)
        assert two.loads.in_flight(ONE, KEY) == two.loads.everywhere(KEY) == 2
        assert one.ledger.load(ROUTE) == 2, "nobody counts its own twice"
    await wait_until(lambda: two.ledger.load(ROUTE) == 0)


async def test_new_table_is_told_at_once(pair: Pair) -> None:
    _, two, lines = pair
    slow = Frontend(THREE, lines, every_s=3600)
    async with slow.running():
        await wait_until(lambda: two.loads.has_seen(THREE, 1))
        assert not two.loads.has_seen(THREE, 8)
        slow.tables.replace(a_table(8))
        await wait_until(lambda: two.loads.has_seen(THREE, 8))


async def test_own_requests_and_table_are_known_without_a_word() -> None:
    one = Frontend(ONE, SharedLines())
    with holding(one.ledger, ROUTE):
        assert one.loads.in_flight(ONE, KEY) == one.loads.everywhere(KEY) == 1
    assert one.loads.has_seen(ONE, 1)
    assert not one.loads.has_seen(ONE, 2)


async def test_frontend_that_never_spoke_has_seen_nothing(pair: Pair) -> None:
    assert not pair[0].loads.has_seen(THREE, 0)
    assert pair[0].loads.in_flight(THREE, KEY) == 0


async def test_silent_frontend_is_no_load_but_its_last_word_stands(pair: Pair) -> None:
    one, two, lines = pair
    with holding(one.ledger, ROUTE):
        await wait_until(lambda: two.ledger.load(ROUTE) == 1)
        lines.down = True
        two.clock.passed_s += 6
        await wait_until(lambda: two.ledger.load(ROUTE) == 0)
        assert two.loads.in_flight(ONE, KEY) == 1, "what it holds must not be stopped while it lives"
        assert two.loads.everywhere(KEY) == 0


async def test_frontend_that_is_gone_for_long_is_forgotten(pair: Pair) -> None:
    _, two, lines = pair
    await wait_until(lambda: two.loads.has_seen(ONE, 1))
    lines.down = True
    two.clock.passed_s += 130
    await wait_until(lambda: not two.loads.has_seen(ONE, 1))
    assert two.loads.in_flight(ONE, KEY) == 0


async def test_whoever_has_nothing_to_say_says_it_once() -> None:
    lines = SharedLines()
    one = Frontend(ONE, lines)
    await one.loads._announce()
    for _ in range(4):
        one.clock.passed_s += 1
        await one.loads._announce()
    assert len(said(lines, ONE)) == 1
    one.clock.passed_s += 1
    await one.loads._announce()
    assert len(said(lines, ONE)) == 2, "one may have been lost"


async def test_end_of_the_last_request_is_told() -> None:
    lines = SharedLines()
    one = Frontend(ONE, lines)
    with holding(one.ledger, ROUTE):
        await one.loads._announce()
    await one.loads._announce()
    await one.loads._announce()
    assert [len(message.held) for message in said(lines, ONE)] == [1, 0]


async def test_newcomer_is_told_without_delay(pair: Pair) -> None:
    _, _, lines = pair
    three = Frontend(THREE, lines)
    async with three.running():
        await wait_until(lambda: three.loads.has_seen(ONE, 1) and three.loads.has_seen(TWO, 1))


async def test_message_that_was_not_sent_is_sent_again() -> None:
    lines = SharedLines()
    one = Frontend(ONE, lines)
    lines.down = True
    await one.loads._announce()
    lines.down = False
    await one.loads._announce()
    assert len(said(lines, ONE)) == 1


async def test_garbage_is_not_heard(pair: Pair) -> None:
    one, two, lines = pair
    await lines.publish(subjects.REQUESTS_HELD, b"{]")
    with holding(one.ledger, ROUTE):
        await wait_until(lambda: two.ledger.load(ROUTE) == 1)


async def test_this_frontend_is_alive_whatever_the_store_says() -> None:
    assert await Frontend(ONE, SharedLines()).loads.alive() == {ONE, TWO, THREE}


async def test_a_seat_is_told_when_it_is_taken_and_when_it_is_free_again() -> None:
    """Others let in as many as they believe that there is room for, and need not wait to hear of more."""
    lines, narrow = SharedLines(), replace(ROUTE, parallel=1)
    one, two = Frontend(ONE, lines, every_s=3600), Frontend(TWO, lines, every_s=3600)
    async with one.running(), two.running():
        await wait_until(lambda: TWO in one.loads.heard())
        with holding(one.ledger, narrow):
            changed = two.ledger.elsewhere_changed
            await wait_until(lambda: two.ledger.load(narrow) == 1)
            assert changed.is_set()
        await wait_until(lambda: two.ledger.load(narrow) == 0)
