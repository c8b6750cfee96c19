"""From the host that a node says it has to addresses that may be dialled, by the rules of core.reach.

A node is at a loopback or link-local address only if it registered from there, which is checked when it does
(`far_claim`). What any other name resolves to is checked here, at the moment of dialling.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import psutil
from aiohttp.abc import AbstractResolver, ResolveResult

from remuda.core.reach import AddressRange, is_ip, range_of, refused
from remuda.host.outbound import AddressRefused

T = TypeVar("T")
_LOCALHOST: Final = "localhost"


def far_claim(host: str, source: str, here: str) -> str:
    """Why a node that calls from the address `source` cannot be at this host; empty: it can.

    `here` is our end of its connection: the same address at both ends is this very machine.
    """
    if not source:
        return ""
    if source == here or range_of(source) is AddressRange.LOOPBACK:
        return _far_from_here(host)
    if host.lower() in _own_names():
        return f"{host} is the machine of the frontend, and the node calls from {source}"
    if is_ip(host) and (reason := refused(host, range_of(source))):
        return f"{reason}; the node calls from {source}"
    return ""


def _far_from_here(host: str) -> str:
    """Why a node on this machine cannot be at this host. Of link-local addresses it has the machine's own:
    behind others are neighbours, such as the service that holds a cloud machine's credentials."""
    if not is_ip(host) or range_of(host) is not AddressRange.LINK_LOCAL or _is_own_address(host):
        return ""
    return f"{refused(host)}; the node calls from this machine"


def _is_own_address(host: str) -> bool:
    wanted = host.partition("%")[0]
    here = [address for card in psutil.net_if_addrs().values() for address in card]
    return any(address.address.partition("%")[0] == wanted for address in here)


async def connected(host: str, port: int, connect: Callable[[str], Awaitable[T]]) -> T:
    """What `connect` makes of the first address of the host that takes a connection; else the last one's
    failure, or why there is no address."""
    *others, last = await resolved(host, port)
    for address in others:
        with suppress(OSError):
            return await connect(address)
    return await connect(last)


async def resolved(host: str, port: int) -> list[str]:
    """Addresses to dial, at least one. gaierror for a name that is not known; AddressRefused for one that
    leads to where no node of that name can be."""
    if is_ip(host):
        return [host]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    if host.lower() in _own_names():
        return addresses
    allowed = [address for address in addresses if not refused(address)]
    if not allowed:
        raise AddressRefused(next((refused(address) for address in addresses), "its name is not known"))
    return allowed


class NodeResolver(AbstractResolver):
    """The same rules for aiohttp sessions that call nodes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [_resolve_result(host, address, port) for address in await resolved(host, port)]

    async def close(self) -> None:
        pass


def _resolve_result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


def _own_names() -> frozenset[str]:
    """What this machine calls itself: such names lead to loopback addresses in many a hosts file."""
    own = socket.gethostname().lower()
    return frozenset({_LOCALHOST, own, own.partition(".")[0]})
