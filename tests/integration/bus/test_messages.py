"""Messages on a real server: answered, refused, timed out, dropped, and never deaf in silence."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from remuda.bus.client import Bus
from remuda.bus.messages import Incoming, NoResponders, RequestTimedOut
from remuda.core.errors import BusUnusable, Invalid, TooLarge
from tests.support.nats_servers import connected, make_bus, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=10)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with plain_server(tmp_path) as server:
        yield server.url


async def echo(message: Incoming) -> None:
    assert message.respond is not None
    await message.respond(message.payload)


async def never(message: Incoming) -> None:
    await anyio.sleep_forever()


async def test_a_request_is_answered(url: str) -> None:
    async with connected(url) as worker, connected(url) as frontend:
        await worker.subscribe("nodes.1.echo", echo)
        assert await frontend.request("nodes.1.echo", b"hello", SOON) == b"hello"


async def test_a_published_message_arrives_without_a_way_to_answer(url: str) -> None:
    heard: list[Incoming] = []

    async def hear(message: Incoming) -> None:
        heard.append(message)

    async with connected(url) as bus:
        await bus.subscribe("nodes.*.stop", hear)
        await bus.publish("nodes.1.stop", b"null")
        await wait_until(lambda: bool(heard))
    assert heard == [Incoming("nodes.1.stop", b"null", None)]


async def test_subscriptions_that_overlap_all_hear_a_message(url: str) -> None:
    heard: list[str] = []

    async def first(message: Incoming) -> None:
        heard.append("first")

    async def second(message: Incoming) -> None:
        heard.append("second")

    async def wide(message: Incoming) -> None:
        heard.append("wide")

    async with connected(url) as bus:
        await bus.subscribe("a.b", first)
        await bus.subscribe("a.b", second)
        await bus.subscribe("a.*", wide)
        await bus.publish("a.b", b"")
        await wait_until(lambda: len(heard) == 3)
    assert sorted(heard) == ["first", "second", "wide"]


async def test_nobody_listening_is_known_at_once(url: str) -> None:
    async with connected(url) as bus:
        with anyio.fail_after(10), pytest.raises(NoResponders, match=r"no responders on nodes\.1\.gone"):
            await bus.request("nodes.1.gone", b"", timedelta(minutes=10))


async def test_a_silent_handler_times_the_request_out(url: str) -> None:
    async with connected(url) as bus:
        await bus.subscribe("nodes.1.slow", never)
        with pytest.raises(RequestTimedOut, match=r"no answer on nodes\.1\.slow within 0\.05 s"):
            await bus.request("nodes.1.slow", b"", timedelta(milliseconds=50))


async def test_a_handler_that_fails_is_logged_and_goes_on(url: str) -> None:
    async def choosy(message: Incoming) -> None:
        if message.payload == b"bad":
            raise ValueError("cannot")
        await echo(message)

    async with connected(url) as bus:
        await bus.subscribe("nodes.1.choosy", choosy)
        with capture_logs() as logs:
            await bus.publish("nodes.1.choosy", b"bad")
            assert await bus.request("nodes.1.choosy", b"good", SOON) == b"good"
    assert ("bus_handler_failed", "nodes.1.choosy") in [(e["event"], e.get("subject")) for e in logs]


async def test_a_full_queue_drops_counts_and_says_so(url: str) -> None:
    async with connected(url) as bus:
        await bus.subscribe("nodes.1.slow", never, queue_limit=2)
        with capture_logs() as logs:
            for _ in range(10):
                await bus.publish("nodes.1.slow", b"")
            await wait_until(lambda: bus.dropped >= 6)
    assert {
        "event": "bus_message_dropped",
        "subject": "nodes.1.slow",
        "dropped": 1,
        "log_level": "error",
    } in logs


async def test_messages_are_handled_in_order_and_one_at_a_time(url: str) -> None:
    order: list[str] = []

    async def slowly(message: Incoming) -> None:
        order.append(f"begin {message.payload.decode()}")
        await checkpoint()
        order.append(f"end {message.payload.decode()}")

    async with connected(url) as bus:
        await bus.subscribe("a", slowly)
        for number in range(3):
            await bus.publish("a", str(number).encode())
        await wait_until(lambda: len(order) == 6)
    assert order == [f"{word} {number}" for number in range(3) for word in ("begin", "end")]


async def test_concurrent_messages_do_not_wait_for_each_other(url: str) -> None:
    async def first_hangs(message: Incoming) -> None:
        await (never if message.payload == b"hang" else echo)(message)

    async with connected(url) as bus:
        await bus.subscribe("a", first_hangs, concurrent=True)
        await bus.publish("a", b"hang")
        assert await bus.request("a", b"quick", SOON) == b"quick"


async def test_a_message_beyond_the_limit_is_refused_by_name(url: str) -> None:
    async with connected(url) as bus:
        with pytest.raises(TooLarge, match="2000000 bytes on a: the bus takes 1048576"):
            await bus.publish("a", bytes(2_000_000))


@pytest.mark.parametrize("subject", ["", "a b", "a..b"])
async def test_a_malformed_subject_is_refused(url: str, subject: str) -> None:
    async with connected(url) as bus:
        with pytest.raises(Invalid):
            await bus.subscribe(subject, echo)


async def test_a_round_trip_is_measured(url: str) -> None:
    async with connected(url) as bus:
        assert timedelta(0) < await bus.round_trip(SOON) < SOON


async def test_nothing_is_sent_before_the_bus_is_connected() -> None:
    bus: Bus = make_bus("nats://127.0.0.1:1")
    with pytest.raises(BusUnusable, match="not connected yet"):
        await bus.publish("a", b"")
