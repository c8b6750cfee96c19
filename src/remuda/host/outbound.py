"""HTTP to addresses that others name: redirects, token servers, links. Keeps to the rules of core.reach.

What an admin names is dialled wherever it lies. What somebody else names is dialled with a session that knows
in which range that somebody lies, and checks every resolved address before it connects. Sessions share
nothing, so that no connection or lookup of one serves for another.
"""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from socket import AddressFamily
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from remuda.core.reach import AddressRange, is_ip, numeric_alias, range_of, refused

_HOSTS_KNOWN_MAX: Final = 1000
_NEAR: Final = (AddressRange.LOOPBACK, AddressRange.LINK_LOCAL)

MakeSession = Callable[[AbstractResolver], aiohttp.ClientSession]


class AddressRefused(OSError):
    """The address may not be dialled for whoever named it; says why."""

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
        """For a request to `host`, which somebody in the range `named_from` has named; None: an admin has.

        AddressRefused for an address that is none of that somebody's business. Of a request through a proxy
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
        return range_of(host) if is_ip(host) else self._seen.get(host, AddressRange.ORDINARY)


@asynccontextmanager
async def open_outbound(make_session: MakeSession) -> AsyncIterator[Outbound]:
    async with AsyncExitStack() as stack:
        yield Outbound(stack, make_session)


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for this host."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
