"""The bus over a network that is late, silent or torn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import psutil
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remuda.bus.client import DEFAULT_TIMEOUTS, Bus, BusTimeouts
from remuda.bus.messages import Connected, Incoming
from remuda.core.errors import BusUnusable
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.nats_servers import HOST, IMPATIENT, connected, connecting, plain_server, until_down
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=10)
AT_ONCE = timedelta(milliseconds=100)
SLOW_TO_PING = BusTimeouts(ping_every=timedelta(hours=1), answer_within=timedelta(milliseconds=300))


async def echo(message: Incoming) -> None:
    assert message.respond is not None
    await message.respond(message.payload)


@asynccontextmanager
async def linked(
    folder: Path, timeouts: BusTimeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[tuple[FaultProxy, Bus]]:
    """A bus with a proxy between it and its server."""
    async with (
        plain_server(folder) as server,
        fault_proxy(urlsplit(server.url).port or 0) as proxy,
        connected(f"nats://{HOST}:{proxy.port}", timeouts=timeouts) as bus,
    ):
        await bus.subscribe("echo", echo)
        yield proxy, bus


async def reconnected(bus: Bus) -> bool:
    """It is connected, in a while, and its subscription works."""
    with anyio.fail_after(20):
        await bus.wait_connected()
    return await bus.request("echo", b"again", SOON) == b"again"


def test_a_link_that_falls_silent_is_given_up_within_20_s() -> None:
    assert DEFAULT_TIMEOUTS.ping_every + DEFAULT_TIMEOUTS.answer_within < timedelta(seconds=20)


async def test_a_black_hole_is_noticed_and_left_when_it_opens(tmp_path: Path) -> None:
    async with linked(tmp_path, IMPATIENT) as (proxy, bus):
        proxy.stall()
        assert "did not answer" in await until_down(bus)
        proxy.resume()
        assert await reconnected(bus)


@pytest.mark.parametrize("lane", ["up", "down"])
async def test_a_link_that_works_one_way_only_is_given_up(tmp_path: Path, lane: str) -> None:
    async with linked(tmp_path, IMPATIENT) as (proxy, bus):
        {"up": proxy.up, "down": proxy.down}[lane].stall()
        await until_down(bus)
        proxy.resume()
        assert await reconnected(bus)


async def test_a_server_that_says_no_more_is_left(tmp_path: Path) -> None:
    async with linked(tmp_path) as (proxy, bus):
        await proxy.half_close()
        await until_down(bus)
        assert await reconnected(bus)


async def test_an_answer_that_comes_late_costs_the_asker_and_not_the_link(tmp_path: Path) -> None:
    async with linked(tmp_path) as (proxy, bus):
        proxy.slow(delay_s=0.2)
        with pytest.raises(BusUnusable, match="did not answer"):
            await bus.round_trip(AT_ONCE)
        assert isinstance(bus.state, Connected)
        assert await bus.request("echo", b"late", SOON) == b"late"
        assert proxy.accepted == 1


async def test_a_link_that_cannot_be_replaced_is_checked_and_not_trusted(tmp_path: Path) -> None:
    async with linked(tmp_path, SLOW_TO_PING) as (proxy, bus):
        proxy.stall()
        proxy.reset_next = 1000  # New credentials call for a new link, and there is none to be had.
        bus.rotate()
        await until_down(bus)
        proxy.reset_next = 0
        proxy.resume()
        assert await reconnected(bus)


async def flood(bus: Bus) -> None:
    """Publish until the bus is down: far more than anything on the way can hold."""
    with anyio.fail_after(20) as scope, suppress(BusUnusable):
        while True:
            await bus.publish("elsewhere", bytes(256 * 1024))
    assert not scope.cancel_called, "nobody let it go"  # The client swallows being cancelled.


async def test_what_cannot_be_sent_any_more_holds_nobody(tmp_path: Path) -> None:
    async with linked(tmp_path, IMPATIENT) as (proxy, bus):
        proxy.stall()
        await flood(bus)
        assert not isinstance(bus.state, Connected)


async def test_a_dead_link_with_unsent_bytes_leaves_no_socket_behind(tmp_path: Path) -> None:
    def sockets() -> set[int]:
        found = psutil.Process().net_connections("tcp")
        return {one.laddr.port for one in found if one.raddr and one.raddr.port == proxy.port}

    async with linked(tmp_path, IMPATIENT) as (proxy, bus):
        (dead,) = sockets()
        proxy.stall()
        await flood(bus)
        await wait_until(lambda: dead not in sockets(), what="the socket of the dead link to be closed")


async def test_resets_without_end_are_met_with_patience(tmp_path: Path) -> None:
    async with linked(tmp_path) as (proxy, bus):
        for _ in range(10):
            assert await reconnected(bus)
            proxy.reset()
            await until_down(bus)
        assert await reconnected(bus)


@pytest.mark.parametrize(
    "greeting",
    [
        bytes(200_000),
        b"INFO\r\n",
        b"INFO []\r\n",
        b'INFO {"connect_urls": 5}\r\n',
        b'INFO {"server_id": "x"}\r\n-ERR\r\n',
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
async def test_whatever_else_answers_there_is_a_reason_and_no_crash(greeting: bytes) -> None:
    async def greet(caller: SocketStream) -> None:
        async with caller:
            await caller.send(greeting)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await caller.receive()

    async with await anyio.create_tcp_listener(local_host=HOST) as door, anyio.create_task_group() as tasks:
        tasks.start_soon(door.serve, greet)
        async with connecting(f"nats://{HOST}:{door.extra(SocketAttribute.local_port)}") as bus:
            assert f"at nats://{HOST}" in await until_down(bus)
        tasks.cancel_scope.cancel()
