"""Builds what a frontend does with servers that run without us."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from remuda.assembly.running import Runner
from remuda.core.clock import Clock
from remuda.router.live_table import Tables
from remuda.router.loading import Loading
from remuda.servers.loading import LoadingOrServers
from remuda.servers.probing import Prober
from remuda.servers.service import ServerService
from remuda.servers.spending import Spending
from remuda.servers.watch import ServerWatch
from remuda.store.database import Database
from remuda.store.servers import SqlServerStore


class ServerRig:
    def __init__(
        self, database: Database, clock: Clock, tables: Tables, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self._clock = clock
        self._tables = tables
        self._store = SqlServerStore(database)
        self._prober = Prober()
        self.watch = ServerWatch(self._store, self._prober, tables, clock, refresh)
        self.spending = Spending(self._store, clock, self.watch.adopted)

    @property
    def runners(self) -> Sequence[Runner]:
        return self.watch.run, self.spending.run

    def loading(self, ours: Loading) -> LoadingOrServers:
        return LoadingOrServers(ours, self.watch, self._tables, self._clock)

    def service(self, own_ports: Collection[int]) -> ServerService:
        return ServerService(
            self._store,
            self._store,
            self._prober,
            self.watch,
            self.spending,
            self._clock,
            own_ports=own_ports,
        )
