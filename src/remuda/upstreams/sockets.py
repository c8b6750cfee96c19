"""Socket options of connections to replicas, so that a vanished machine is noticed."""

import asyncio
import errno
import socket
import struct
import sys
from typing import Any, Final

IDLE_S: Final = 4
PROBE_EVERY_S: Final = 2
PROBES_MAX: Final = 3
UNACKNOWLEDGED_S: Final = IDLE_S + PROBE_EVERY_S * PROBES_MAX

_NOT_THERE: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_PROBING: Final = {
    # macOS has another name for it.
    "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": IDLE_S,
    "TCP_KEEPINTVL": PROBE_EVERY_S,
    "TCP_KEEPCNT": PROBES_MAX,
}


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the system ask the other end for a sign of life while nothing is sent: no program there notices,
    and a machine that is gone ends the connection in 10 s, where nothing else would for hours."""
    connected = _tcp_socket(transport)
    if connected is None:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBING.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def expect_acknowledgement(transport: asyncio.BaseTransport) -> None:
    """End the connection, too, when something was sent and not taken for so long, where the system can.
    Only for peers that read at all times: of one that is merely busy it would be the end as well."""
    connected = _tcp_socket(transport)
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNACKNOWLEDGED_S)


# Of Linux's `struct tcp_info`: eight bytes, then 32-bit numbers, of which these are the fifth and the 13th.
_TCP_INFO: Final = struct.Struct("=8x4I I 7I I")
_UNACKNOWLEDGED_PLACE: Final = 4
_LAST_ACK_MS_PLACE: Final = 12


def unacknowledged(transport: asyncio.BaseTransport, sent_s_ago: float) -> bool:
    """Whether what was sent so long ago, and last, got no acknowledgement for too long: probes are not sent
    meanwhile, and the system itself keeps trying for a quarter of an hour.

    Unlike `expect_acknowledgement`, this spares a server that is busy and does not read: its machine
    acknowledges all that it was sent, and says that it takes no more for now."""
    connected = _tcp_socket(transport)
    if connected is None or sent_s_ago < UNACKNOWLEDGED_S or sys.platform != "linux":
        return False
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # It has just been closed.
        return False
    return len(info) == _TCP_INFO.size and is_overdue(info)


def is_overdue(info: bytes) -> bool:
    """By what the system tells of a connection. Where nothing waits for an acknowledgement, none is late."""
    figures: tuple[int, ...] = _TCP_INFO.unpack(info)
    return figures[_UNACKNOWLEDGED_PLACE] > 0 and figures[_LAST_ACK_MS_PLACE] >= 1000 * UNACKNOWLEDGED_S


def vanished(error: Exception | None) -> bool:
    """Whether an open connection ended because nothing was acknowledged for too long."""
    return isinstance(error, OSError) and error.errno in _NOT_THERE


def turned_away(error: OSError) -> bool:
    """Whether nothing listens at the address, which was reached. By its words, for of a name with several
    addresses they are all that is left of each."""
    return any(f"[Errno {number}]" in str(error) for number in (errno.ECONNREFUSED, errno.ECONNRESET))


def _tcp_socket(transport: asyncio.BaseTransport) -> Any:
    connected = transport.get_extra_info("socket")
    is_tcp = connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6)
    return connected if is_tcp else None
