"""What becomes of requests for models on adopted servers, where those of our own models are loaded."""

import math
from collections.abc import Sequence
from typing import Final

import anyio

from remuda.core.clock import Clock
from remuda.core.errors import NoCapacity
from remuda.inference.failures import RateLimited, Unpriced, UpstreamFailed
from remuda.router.live_table import Tables
from remuda.router.loading import Loading, LoadStatus, Meanwhile
from remuda.router.table import Route, RoutedModel
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.servers.watch import ServerWatch, SuspectRoute

_ABSENT_RETRY_S: Final = 10


class ServerAbsent(NoCapacity):
    """No server that has the model can be used now; the message says why of each."""

    code = "server_absent"
    retry_after_s: int = _ABSENT_RETRY_S


class ServerPaused(ServerAbsent):
    """The only servers that have the model asked to be left alone for a while."""

    code = RateLimited.code
    http_status = 429

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = math.ceil(retry_after_s)


class LoadingOrServers:
    """Implements router.loading.Loading: nothing is loaded for a model that is only elsewhere."""

    def __init__(self, ours: Loading, watch: ServerWatch, tables: Tables, clock: Clock) -> None:
        self._clock = clock
        self._ours = ours
        self._watch = watch
        self._tables = tables

    async def bring(
        self, model: str, wait_s: float | None, meanwhile: Meanwhile, wishes: NodeWishes = NO_WISHES
    ) -> None:
        entry = self._tables.now.models.get(model)
        if entry is not None and entry.unpriced:
            raise Unpriced(entry.absence)
        if entry is not None and not entry.ours:
            await self._looked_at(entry, wait_s, meanwhile)
            return
        await self._ours.bring(model, wait_s, meanwhile, wishes)

    async def _looked_at(self, entry: RoutedModel, wait_s: float | None, meanwhile: Meanwhile) -> None:
        """Returns once one of its servers can be asked that failed a request a moment ago."""
        model, suspects = entry.config.id, self._watch.suspects(entry.config)
        if looked_at := [one for one in suspects if one.until_s is None]:
            await meanwhile(LoadStatus(model, waits_for=looked_at[0].reason))
            with anyio.move_on_after(wait_s):
                await self._watch.looked_at(looked_at)
            entry = self._tables.now.models.get(model, entry)
            if entry.routes or entry.overflow:  # They may be full: the request waits in line then.
                return
        left = [one.retry_s - self._clock.monotonic() for one in suspects if one.until_s is not None]
        if left and not entry.absence:
            raise ServerPaused(suspects[0].why.message, max(min(left), 0.0))
        raise ServerAbsent(_why_none(entry, suspects))

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        if route.server:
            self._watch.suspect(route, why)
        else:
            self._ours.suspect(route, why)

    async def gone(self, route: Route) -> bool:
        return await (self._watch.gone(route) if route.server else self._ours.gone(route))

    async def removed(self, route: Route) -> bool:
        return not route.server and await self._ours.removed(route)


def _why_none(entry: RoutedModel, suspects: Sequence[SuspectRoute]) -> str:
    told = [entry.absence, *dict.fromkeys(one.reason for one in suspects)]
    return "; ".join(filter(None, told)) or f"no server that has {entry.config.id} answers just now"
