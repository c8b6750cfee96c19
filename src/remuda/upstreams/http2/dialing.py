"""From an address to a connection over which calls can be made, or to the reason why there is none."""

import asyncio
import os
import socket

import anyio

from remuda.core.reach import host_and_port
from remuda.host.dialing import connected
from remuda.host.outbound import AddressRefused
from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.connection import Connection
from remuda.upstreams.http2.failures import TurnedAway, Unreachable
from remuda.upstreams.sockets import turned_away


async def dial(address: str) -> Connection:
    """`address`: host:port, with brackets where a host has colons. CallFailed when nobody introduces himself;
    a port that is closed tells at once."""
    parts = host_and_port(address)
    if parts is None:
        raise Unreachable("its address is not HOST:PORT")
    host, port = parts
    loop = asyncio.get_running_loop()
    try:
        with anyio.fail_after(limits.CONNECT_S):
            _, connection = await connected(
                host,
                port,
                lambda one: loop.create_connection(lambda: Connection(loop), one, port),
            )
            try:
                await connection.introduced()
            except BaseException:
                connection.close()
                raise
    except TimeoutError:
        raise Unreachable(f"it did not answer within {limits.CONNECT_S:g} s") from None
    except (OSError, OverflowError, UnicodeError) as error:
        raise _failure(error) from error
    return connection


def _failure(error: Exception) -> Unreachable:
    """Without the address, which is no business of clients."""
    if isinstance(error, AddressRefused):
        return Unreachable("its name leads to an address that no node has")
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        return Unreachable("its name is not resolved")
    if turned_away(error):
        return TurnedAway("connection refused")
    return Unreachable(os.strerror(error.errno).lower() if error.errno else "none of its addresses answers")
