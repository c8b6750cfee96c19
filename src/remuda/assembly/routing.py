"""Builds what routing and placement learn from requests: how fast nodes are, and why requests went where; and
what sees to it that replicas which answer also work."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from remuda.assembly.addresses import bind_host, loopback
from remuda.assembly.operations import FrontendParts
from remuda.assembly.running import Runner
from remuda.assembly.settings import FrontendSettings
from remuda.core.ids import FrontendId
from remuda.core.reach import AddressRange
from remuda.gateway.inference.link_fetch import LinkFetcher, open_link_fetcher
from remuda.router.chooser import ReplicaChooser
from remuda.router.decisions import DecisionLog, Explanations
from remuda.router.live_table import Tables
from remuda.router.suspects import Suspects
from remuda.router.usage import PeerLoads, RequestLedger
from remuda.router.work_checks import WorkChecks
from remuda.scheduler.ports import ReplicaEngine
from remuda.scheduler.service import Models
from remuda.scheduler.speed_keeper import SpeedKeeper
from remuda.scheduler.upkeep import BY
from remuda.store.measurements import SqlRateStore
from remuda.upstreams.pool import OpenUpstreams


class RoutingRig:
    """`about` tells a model's backend and the size of its weights; `alive` are the frontends that live."""

    def __init__(
        self,
        parts: FrontendParts,
        about: Callable[[str], tuple[str, int]],
        tables: Tables,
        alive: Callable[[], Awaitable[Collection[FrontendId]]],
    ) -> None:
        self.speeds = SpeedKeeper(SqlRateStore(parts.database), about)
        self.decisions = DecisionLog()
        self.chooser = ReplicaChooser(
            tables,
            parts.clock,
            parts.bus,
            parts.frontend,
            by_prefixes=parts.settings.distributed_prefix_cache,
            lives_s=parts.settings.distributed_prefix_cache_ttl.total_seconds(),
        )
        self.explanations = Explanations(parts.frontend, self.decisions, parts.bus, alive, parts.clock)

    @property
    def runners(self) -> Sequence[Runner]:
        return self.speeds.run, self.explanations.run, self.chooser.run


class LookedAfter(NamedTuple):
    """Where it is seen what replicas have in flight, and whether they still live."""

    tables: Tables
    upstreams: OpenUpstreams
    peers: PeerLoads
    ledger: RequestLedger
    engine: ReplicaEngine


def work_checks(parts: FrontendParts, seen: LookedAfter, suspects: Suspects, models: Models) -> WorkChecks:
    return WorkChecks(
        parts.frontend,
        seen.tables,
        seen.upstreams,
        parts.clock,
        parts.entropy,
        in_flight=seen.peers.everywhere,
        own=seen.ledger.of,
        silent_s=seen.upstreams.silent_s,
        healthy=seen.engine.healthy,
        alive=seen.peers.heard,
        fence=suspects.fence,
        reload=partial(models.load, by=BY),
        every_s=parts.settings.work_check.total_seconds(),
    )


@asynccontextmanager
async def open_links(settings: FrontendSettings) -> AsyncIterator[LinkFetcher]:
    """Of messages, as far as this frontend fetches them."""
    if not settings.fetch_links:
        yield LinkFetcher()
        return
    # Who asks is on this machine, and may name what is on it; not through a proxy.
    here_only = loopback(bind_host(settings)) and not settings.trusted_proxies
    async with open_link_fetcher(AddressRange.LOOPBACK if here_only else AddressRange.ORDINARY) as links:
        yield links
