"""Connections to replicas notice that a machine has vanished."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack

import anyio
import pytest

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams import sockets
from remuda.upstreams.http.client import HttpConnection as HttpConnection
from remuda.upstreams.http.client import HttpTimeouts, Pool, ServerAddress
from remuda.upstreams.http2.connection import Http2Connection as Http2Connection
from tests.support.namespaces import Machine, two_machines

pytestmark = pytest.mark.anyio

Maker = Callable[[asyncio.AbstractEventLoop], asyncio.BaseProtocol]


async def _options(make: Maker, *names: str) -> list[int]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, _ = await loop.create_connection(lambda: make(loop), *listener.getsockname())
        connected = transport.get_extra_info("socket")
        values = [connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        alive = connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        transport.abort()
    return [alive, *values]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other names for it")
@pytest.mark.parametrize(
    "make", [Http2Connection, lambda loop: HttpConnection(loop, HttpTimeouts())], ids=["http/2", "http/1.1"]
)
async def test_a_quiet_connection_is_probed(make: Maker) -> None:
    alive, idle_s, every_s, count = await _options(make, "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")

    assert alive
    assert idle_s + every_s * count == sockets.UNACKNOWLEDGED_S == 10


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot do it")
async def test_only_a_server_that_always_reads_has_to_acknowledge_in_time() -> None:
    http2 = await _options(Http2Connection, "TCP_USER_TIMEOUT")
    http = await _options(lambda loop: HttpConnection(loop, HttpTimeouts()), "TCP_USER_TIMEOUT")

    assert (http2[1], http[1]) == (10_000, 0)


@pytest.mark.parametrize(
    ("unacknowledged", "last_heard_ms", "overdue"),
    [(1, 10_000, True), (1, 9_999, False), (0, 60_000, False)],
    ids=["nothing came back", "it came a moment ago", "nothing is missing, or it takes nothing for now"],
)
def test_only_what_was_sent_can_be_overdue(unacknowledged: int, last_heard_ms: int, overdue: bool) -> None:
    info = bytes(8) + struct.pack("=13I", 0, 0, 0, 0, unacknowledged, *[0] * 7, last_heard_ms)

    assert sockets.is_overdue(info) is overdue


_HEAD = b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def _serving(machine: Machine) -> socket.socket:
    return machine.run(socket.create_server, (machine.address, 0))


async def _failure_after(listener: socket.socket, vanish: Callable[[], None]) -> UpstreamFailed:
    """Of the second request on a connection whose first was answered before the machine vanished."""
    pool = Pool(HttpTimeouts(connect_s=3))
    address = ServerAddress(*listener.getsockname())

    async def answer_first() -> None:
        loop = asyncio.get_running_loop()
        accepted, _ = await loop.sock_accept(listener)
        kept.callback(accepted.close)
        await loop.sock_recv(accepted, 1000)
        await loop.sock_sendall(accepted, _ANSWER)

    listener.setblocking(False)
    with ExitStack() as kept:
        kept.callback(pool.close)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_first)
            first = await pool.exchange(address, _HEAD, b"")
            assert await first.piece() == b""
            pool.release(first)
        vanish()
        with pytest.raises(UpstreamFailed) as failed:
            await pool.exchange(address, _HEAD, b"")
    return failed.value


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may make network namespaces"
)
def test_request_to_a_machine_that_vanished_before_it_was_sent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is not acknowledged, keepalive probes are not sent."""
    monkeypatch.setattr(sockets, "UNACKNOWLEDGED_S", 1)
    with two_machines() as (here, there), _serving(there) as listener:

        def ask() -> UpstreamFailed:
            return asyncio.run(_failure_after(listener, lambda: there.drop_all_for(here)))

        assert here.run(ask).fault is Fault.UNREACHABLE
