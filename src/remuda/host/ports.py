"""TCP ports of this machine: claim one, find a free one, or who has one. Refusals can be acted on."""

import asyncio
import errno
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from remuda.core.errors import Misconfigured

LOOPBACK: Final = "127.0.0.1"
_PROBE_S: Final = 0.5
_BACKLOG = 2048
_PORT_MAX = 65535
_PROC = Path("/proc")
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def listen(host: str, port: int, *, setting: str = "--port") -> socket.socket:
    """A socket already listening on that address, so that no other process can take it between check and use.

    Raises Misconfigured, naming `setting`, when the address cannot be had.
    """
    if not 0 <= port <= _PORT_MAX:
        raise Misconfigured(f"{port} is not a port number", hint=f"give {setting} a number up to {_PORT_MAX}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        at_fault = "--host" if error.errno == errno.EADDRNOTAVAIL and setting == "--port" else setting
        raise Misconfigured(_why_not(host, port, error), hint=f"choose another with {at_fault}") from error


def free_port(host: str, preferred: Iterable[int] = ()) -> int:
    """The first of `preferred` that is free on `host`, else one the system picks.

    It is not held when this returns: for a program that can only be given a number.
    """
    for port in preferred:
        try:
            return _probe(host, port)
        except Misconfigured:
            continue
    return _probe(host, 0)


async def nothing_listens(port: int) -> bool:
    """On the loopback address, for sure; one that takes no connections just now may be busy."""
    try:
        with anyio.move_on_after(_PROBE_S):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def listeners(port: int) -> frozenset[int] | None:
    """The sockets, by inode, that may get what is sent to this port of 127.0.0.1; None: unknown."""
    try:
        return frozenset(_listeners_in("tcp", port)) | frozenset(_listeners_in("tcp6", port))
    except OSError:
        return None


def listening_process(port: int) -> str:
    """Which process of this user listens on that port of any address of this machine, for people; empty where
    that is not told."""
    try:
        inodes = frozenset(
            inode for table in ("tcp", "tcp6") for inode, number, _ in _listening_in(table) if number == port
        )
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if inodes else []
    except OSError:
        return ""
    for pid in pids:
        with suppress(OSError):
            if inodes & sockets_of(pid):
                return f"process {pid} ({(_PROC / str(pid) / 'comm').read_text().strip()})"
    return ""


def sockets_of(pid: int) -> frozenset[int]:
    """By inode, as `listeners` has them; none of one that is gone. OSError when it is not ours to know."""
    inodes = set[int]()
    with suppress(FileNotFoundError, ProcessLookupError):
        for handle in (_PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                if found := _SOCKET.fullmatch(os.readlink(handle)):
                    inodes.add(int(found[1]))
    return frozenset(inodes)


def _listeners_in(table: str, port: int) -> Iterator[int]:
    for inode, number, address in _listening_in(table):
        if number == port and address in _REACHED_BY_LOOPBACK:
            yield inode


def _listening_in(table: str) -> Iterator[tuple[int, int, str]]:
    """Inode, port and address of each socket that listens."""
    try:
        lines = (_PROC / "net" / table).read_text().splitlines()[1:]
    except FileNotFoundError:
        if table == "tcp6":  # A kernel without IPv6.
            return
        raise
    for line in lines:
        _, local, _, state, *_, inode = line.split(maxsplit=10)[:10]
        address, _, number = local.rpartition(":")
        if state == _LISTENS:
            yield int(inode), int(number, 16), address


def _in_proc(packed: bytes) -> str:
    """As the kernel prints an address: in words of four bytes, each as the processor reads it."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_REACHED_BY_LOOPBACK = frozenset(
    _in_proc(socket.inet_pton(family, address))
    for family, address in (
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::"),
        (socket.AF_INET6, "::ffff:127.0.0.1"),
    )
)


def _probe(host: str, port: int) -> int:
    with listen(host, port) as claimed:
        number: int = claimed.getsockname()[1]
        return number


def _why_not(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use"
        case errno.EACCES:
            return f"port {port} on {host} needs rights this user does not have"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror or error}"
