"""Connections to replicas notice that a machine has vanished."""

import asyncio
import socket
import sys
from collections.abc import Callable

import pytest

from remuda.upstreams import sockets
from remuda.upstreams.http.client import HttpConnection as HttpConnection
from remuda.upstreams.http.client import HttpTimeouts
from remuda.upstreams.http2.connection import Http2Connection as Http2Connection

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
