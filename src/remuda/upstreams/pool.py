"""Upstreams for the endpoints that are routed to, kept while they are in use."""

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Protocol

from remuda.core.clock import Clock
from remuda.inference.model import ReplicaEndpoint, Upstream
from remuda.upstreams.anthropic.upstream import AnthropicUpstream
from remuda.upstreams.http.client import Pool
from remuda.upstreams.http.upstream import HttpUpstream

HTTP = "http"
ANTHROPIC = "anthropic"


class ClosableUpstream(Upstream, Protocol):
    """One with a connection of its own. Closing lets what is under way come to its end."""

    @property
    def heard_s(self) -> float: ...

    async def aclose(self) -> None: ...


class OpenUpstreams:
    """Implements inference.model.Upstreams. HTTP servers share a pool of connections; each gRPC backend has
    its own upstream, made by `grpc_factory`."""

    def __init__(
        self,
        clock: Clock,
        *,
        http: Pool,
        servers: Pool | None = None,
        grpc_factory: Callable[[ReplicaEndpoint], ClosableUpstream],
    ) -> None:
        self._clock = clock
        self._http = http
        self._servers = servers or http
        self._grpc_factory = grpc_factory
        self._pooled: dict[ReplicaEndpoint, HttpUpstream | AnthropicUpstream] = {}
        self._called: dict[ReplicaEndpoint, ClosableUpstream] = {}

    def at(self, endpoint: ReplicaEndpoint) -> Upstream:
        if endpoint.protocol in (HTTP, ANTHROPIC):
            pooled = self._pooled.get(endpoint)
            if pooled is None:
                pool = self._servers if endpoint.server else self._http
                kind = HttpUpstream if endpoint.protocol == HTTP else AnthropicUpstream
                pooled = self._pooled[endpoint] = kind(endpoint, pool, self._clock)
            return pooled
        called = self._called.get(endpoint)
        if called is None:
            called = self._called[endpoint] = self._grpc_factory(endpoint)
        return called

    def silent_s(self, endpoint: ReplicaEndpoint) -> float:
        """Seconds since a backend in our fleet last said anything to this frontend."""
        upstream = self._called.get(endpoint) or self._pooled.get(endpoint)
        heard_s = -math.inf if isinstance(upstream, AnthropicUpstream | None) else upstream.heard_s
        return asyncio.get_running_loop().time() - heard_s

    async def forget(self, in_use: Collection[ReplicaEndpoint]) -> None:
        """Drop all but these."""
        self._pooled = {endpoint: kept for endpoint, kept in self._pooled.items() if endpoint in in_use}
        gone = [endpoint for endpoint in self._called if endpoint not in in_use]
        for upstream in [self._called.pop(endpoint) for endpoint in gone]:
            await upstream.aclose()

    async def aclose(self) -> None:
        await self.forget(())
        self._http.close()
        self._servers.close()
