"""What becomes of requests for models on adopted servers, where those of our own models are loaded."""

from typing import Final

from remuda.core.errors import NoCapacity
from remuda.inference.failures import Unaffordable, UpstreamFailed
from remuda.router.live_table import Tables
from remuda.router.loading import Loading, Meanwhile
from remuda.router.table import Route
from remuda.servers.watch import ServerWatch

_ABSENT_RETRY_S: Final = 10


class ServerAbsent(NoCapacity):
    """No server that has the model can be used now; the message says why of each."""

    code = "server_absent"
    retry_after_s = _ABSENT_RETRY_S


class LoadingOrServers:
    """Implements router.loading.Loading: nothing is loaded for a model that is only elsewhere."""

    def __init__(self, ours: Loading, watch: ServerWatch, tables: Tables) -> None:
        self._ours = ours
        self._watch = watch
        self._tables = tables

    async def bring(self, model: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        entry = self._tables.now.models.get(model)
        if entry is not None and entry.unpriced:
            raise Unaffordable(entry.absence, status=400)
        if entry is not None and not entry.ours:
            raise ServerAbsent(entry.absence or f"no server that has {model} answers just now")
        await self._ours.bring(model, wait_s, meanwhile)

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        if route.server:
            self._watch.suspect(route, why)
        else:
            self._ours.suspect(route, why)

    async def gone(self, route: Route) -> bool:
        return await (self._watch.gone(route) if route.server else self._ours.gone(route))

    async def removed(self, route: Route) -> bool:
        return not route.server and await self._ours.removed(route)
