"""Connections to addresses that others name: HTTP for redirects, token servers and links, and the addresses
at which a node may be dialled, from the host that it says it has. Keeps to the rules of core.reach.

An address named by an admin is always dialled. One named by another party is dialled with a session that
knows the address range of that party, and checks every resolved address before it connects. Sessions
share nothing, so that no connection or lookup of one serves for another. A node is at a loopback or
link-local address only if it registered from there, which is checked when it does (`far_claim`).
"""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from socket import AddressFamily
from typing import Final, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
import psutil
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from remuda.core.reach import AddressRange, is_ip, numeric_alias, range_of, refused

_HOSTS_KNOWN_MAX: Final = 1000
_NEAR: Final = (AddressRange.LOOPBACK, AddressRange.LINK_LOCAL)

MakeSession = Callable[[AbstractResolver], aiohttp.ClientSession]


class AddressRefused(OSError):
    """The address may not be dialled for the party that named it; says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)


class UnusualAddress(AddressRefused):
    """An address in a form that is only used to hide which one it is."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} stands for {address}; addresses are accepted in their usual form only")


class Resolver(AbstractResolver):
    """Notes in which range each host lies, and with `near` hands out only what may be dialled from there."""

    def __init__(
        self, near: AddressRange | None, seen: dict[str, AddressRange], inner: AbstractResolver | None = None
    ) -> None:
        self._near = near
        self._seen = seen
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        ranges = {range_of(one["host"]) for one in found}
        if len(self._seen) >= _HOSTS_KNOWN_MAX:
            self._seen.clear()
        self._seen[host] = next((near for near in _NEAR if near in ranges), AddressRange.ORDINARY)
        if self._near is None:
            return found
        reasons = [refused(one["host"], self._near) for one in found]
        allowed = [one for one, reason in zip(found, reasons, strict=True) if not reason]
        if not allowed:
            raise AddressRefused(next(iter(reasons), "its name is not known"))
        return allowed

    async def close(self) -> None:
        await self._inner.close()


class Outbound:
    """Sessions by who named the address."""

    def __init__(self, stack: AsyncExitStack, make_session: MakeSession) -> None:
        self._stack = stack
        self._make_session = make_session
        self._sessions: dict[AddressRange | None, aiohttp.ClientSession] = {}
        self._seen: dict[str, AddressRange] = {}

    async def session(
        self, host: str, named_from: AddressRange | None, *, proxied: bool = False
    ) -> aiohttp.ClientSession:
        """For a request to `host`, named by a party in the range `named_from`; None: by an admin.

        AddressRefused for an address out of that party's range. Of a request through a proxy
        only the written address can be checked: the proxy resolves names.
        """
        if address := numeric_alias(host):
            raise UnusualAddress(host, address)
        if named_from is not None and is_ip(host) and (reason := refused(host, named_from)):
            raise AddressRefused(reason)
        key = None if proxied else named_from
        if key not in self._sessions:
            session = self._make_session(Resolver(key, self._seen))
            self._sessions[key] = await self._stack.enter_async_context(session)
        return self._sessions[key]

    def range_of(self, host: str, *, proxied: bool = False) -> AddressRange:
        """Where a host lies that was just asked. One behind a proxy is not here, whatever it is called."""
        if proxied:
            return AddressRange.ORDINARY
        unasked = AddressRange.LOOPBACK if host == _LOCALHOST else AddressRange.ORDINARY
        return range_of(host) if is_ip(host) else self._seen.get(host, unasked)


@asynccontextmanager
async def open_outbound(make_session: MakeSession) -> AsyncIterator[Outbound]:
    async with AsyncExitStack() as stack:
        yield Outbound(stack, make_session)


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


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
