"""Which address a request comes from, behind proxies or not."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.fleet.identity import host_of, plain_ip

PEER: Final = "remuda.peer"
"""In a request's scope: the other end of the connection. `client` is what headers may have made of it."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """`X-Forwarded-For` can be written by any client, so it counts only from these."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> "TrustedProxies":
        """Addresses and networks as people write them; ValueError."""
        return cls(tuple(ipaddress.ip_network(word, strict=False) for word in words))

    @property
    def any_local(self) -> bool:
        """Whether a proxy on this machine is among them."""
        return any(network[0].is_loopback for network in self.networks)

    def source(self, client: str, forwarded: Sequence[str]) -> str:
        """The nearest address that is not a trusted proxy's own. `forwarded` has the header's values in the
        order they came; each proxy appends the address it was called from. Where that is unreadable, the
        proxy's own address counts: a caller without an address could pass for anyone."""
        source = plain_ip(client)
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        while hops and self.trusts(source):
            hop = hops.pop()
            caller = plain_ip(hop.strip("[]")) or plain_ip(host_of(hop).strip("[]"))
            if not caller:
                break
            source = caller
        return source

    def claimed(self, client: str, forwarded: Sequence[str]) -> str:
        """The address by which a caller's claims are limited: the last one of the header, from any source.
        A proxy that is not named as trusted wrote its caller's there, which is not on this machine."""
        hop = forwarded[-1].rpartition(",")[2].strip() if forwarded else ""
        return ("" if self.trusts(plain_ip(client)) else plain_ip(hop.strip("[]"))) or self.source(
            client, forwarded
        )

    def trusts(self, address: str) -> bool:
        if not address or not self.networks:
            return False
        return any(ipaddress.ip_address(address) in network for network in self.networks)


class KnownPeer:
    """Stands before everything that believes headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await self._app(scope, receive, send)
