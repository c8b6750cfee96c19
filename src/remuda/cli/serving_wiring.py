"""Composition root of serving: from requests to replicas, and from configured models to loaded ones."""

import os
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from remuda.bus.client import Bus
from remuda.cli.ops_wiring import Workshop
from remuda.cli.running import background
from remuda.cli.settings import FrontendSettings
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.ids import FrontendId, MachineId
from remuda.fleet.ports import FleetStore
from remuda.fleet.registry import Registry
from remuda.gateway.openai.figures import Figures
from remuda.gateway.openai.running import Running
from remuda.gateway.services import Inference, Serving
from remuda.inference.model import Endpoint
from remuda.ops.model import Step
from remuda.ops.signal import ChangeSignal
from remuda.router.current import Tables
from remuda.router.dispatch import Dispatcher, Waits
from remuda.router.doubts import Doubts
from remuda.router.ledger import Ledger
from remuda.router.loading import ColdPath
from remuda.router.peers import PeerLoads
from remuda.router.refreshing import Sources, TableKeeper
from remuda.scheduler.catalogue import Catalogue
from remuda.scheduler.demand import Demand
from remuda.scheduler.idleness import unloads_at
from remuda.scheduler.loader import Loader, LoadLimits, Tools
from remuda.scheduler.model import Replica
from remuda.scheduler.model_folder import ModelFolder
from remuda.scheduler.placing import Placement, Placing
from remuda.scheduler.service import Models
from remuda.scheduler.truth_keeping import TruthKeeper
from remuda.scheduler.unloader import Unloader
from remuda.scheduler.unloads import Unloads
from remuda.scheduler.upkeep import Habits, Upkeep
from remuda.scheduler.work import ReplicaWork
from remuda.scheduler.worker_calls import BusWorker
from remuda.store.database import Database
from remuda.store.models import SqlModelStore
from remuda.store.replicas import SqlReplicaStore
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.grpc.upstream import GrpcUpstream
from remuda.upstreams.http.client import Pool
from remuda.upstreams.pool import OpenUpstreams


@dataclass(frozen=True, slots=True)
class Ground:
    """What a frontend has before it serves. `own_machines`: workers that share our folder of models."""

    settings: FrontendSettings
    models_path: Path
    database: Database
    fleet: FleetStore
    registry: Registry
    bus: Bus
    frontend: FrontendId
    signal: ChangeSignal
    token: SecretStr | None
    own_machines: Collection[MachineId]
    figures: CollectorRegistry
    clock: Clock
    entropy: Entropy

    @property
    def secret(self) -> str:
        return "" if self.token is None else self.token.get_secret_value()


class ServingRig:
    """The parts, put together in two steps: operations carry out loads, and loads need operations."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        settings, clock = ground.settings, ground.clock
        self._replicas = SqlReplicaStore(ground.database)
        self._model_store = SqlModelStore(ground.database)
        self._catalogue = Catalogue(self._model_store, ground.models_path)
        self._tables, self._ledger = Tables(), Ledger()
        sources = Sources(self._replicas, ground.registry.standings, self._catalogue, ground.secret)
        self._keeper = TableKeeper(self._tables, self._ledger, sources, ground.bus, ground.frontend, clock)
        self._peers = PeerLoads(
            ground.frontend,
            self._tables,
            self._ledger,
            ground.bus,
            clock,
            listening=ground.fleet.frontends,
            touch=self._replicas.touch,
        )
        self._worker = BusWorker(ground.bus)
        self._http = Pool()
        self._engine = GrpcEngine(self._http, threads=os.cpu_count() or 1)
        self._shared = settings.distributed_shared_models

    def model_work(self, shop: Workshop) -> ReplicaWork:
        """What operations hand loads and unloads to."""
        self._shop = shop

        def moved(step: Step) -> float:
            live = shop.board.of(step.op, step.node)
            return 0.0 if live is None else live.current_bytes + (live.fraction or 0.0)

        settings = self._ground.settings
        limits = LoadLimits(settings.nats_backend_install_timeout, settings.nats_model_load_timeout)
        tools = Tools(
            self._replicas,
            self._worker,
            self._engine,
            self._catalogue,
            self._ground.registry.standings,
            moved,
            self._keeper.notify,
            self._ground.secret,
            self._shared,
            limits,
        )
        unloader = Unloader(self._replicas, self._worker, self._peers, self._keeper.notify)
        return ReplicaWork(Loader(tools), unloader)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[tuple[Serving, Inference]]:
        """Requests are answered for as long as the block lasts."""
        ground, shop, clock = self._ground, self._shop, self._ground.clock
        settings = ground.settings
        unloads = Unloads(shop.store, ground.registry.standings, clock, ground.entropy, ground.signal.notify)
        placing = Placing(
            self._replicas,
            self._catalogue,
            Placement(shop.operations.look, self._peers.everywhere, ground.own_machines, self._shared),
            unloads,
            clock=clock,
            entropy=ground.entropy,
            changed=self._changed,
        )
        models = Models(
            self._catalogue,
            self._model_store,
            self._replicas,
            shop.store,
            placing,
            unloads,
            changed=self._changed,
        )
        demand = Demand(
            self._replicas,
            shop.store,
            self._catalogue,
            placing,
            clock,
            routable=self._routable,
            refresh=self._keeper.refresh,
        )
        doubts = Doubts(
            self._tables,
            self._replicas,
            self._engine,
            self._worker,
            changed=self._keeper.notify,
            refresh=self._keeper.refresh,
        )
        cold = ColdPath(demand, self._tables, doubts, shop.board, clock)
        truth = TruthKeeper(
            self._replicas, self._worker, shop.operations.nodes, shop.store.live, self._keeper.notify
        )
        upkeep = Upkeep(
            self._replicas,
            shop.store.live,
            self._catalogue,
            truth,
            unloads,
            in_flight=self._peers.everywhere,
            changed=self._keeper.notify,
            wake=lambda: self._tables.changed,
            habits=Habits(settings.keep_alive),
        )
        folder = ModelFolder(ground.models_path, self._model_store, ground.frontend, self._keeper.notify)
        figures = Figures(ground.figures, self._tables, self._ledger)
        async with AsyncExitStack() as stack:
            upstreams = OpenUpstreams(clock, http=self._http, grpc_factory=self._grpc)
            stack.push_async_callback(upstreams.aclose)
            runners = (folder.run, self._keeper.run, self._peers.run, doubts.run, upkeep.run)
            await stack.enter_async_context(background(*runners))
            dispatcher = Dispatcher(
                self._tables,
                self._ledger,
                upstreams,
                cold,
                clock,
                Waits(
                    settings.model_load_wait.total_seconds() or None,
                    settings.request_wait.total_seconds(),
                    settings.requests_waiting_max,
                ),
                waiting_changed=figures.waiting_changed,
            )
            running = Running(settings.shutdown_grace.total_seconds())
            serving = Serving(models, self._peers.everywhere, self._unloads_at, cold.look)
            yield (
                serving,
                Inference(
                    dispatcher,
                    self._tables,
                    figures,
                    running,
                    body_bytes_max=settings.request_bytes_max,
                    expose_node=settings.expose_node_header,
                ),
            )

    def _changed(self) -> None:
        """Of replicas and of operations: a load is both."""
        self._keeper.notify()
        self._ground.signal.notify()

    def _grpc(self, endpoint: Endpoint) -> GrpcUpstream:
        return GrpcUpstream(endpoint, self._ground.clock, self._ground.entropy)

    def _routable(self, model: str) -> bool:
        entry = self._tables.now.models.get(model)
        return entry is not None and bool(entry.routes)

    def _unloads_at(self, replica: Replica) -> datetime | None:
        found = self._catalogue.find(replica.key.model)
        config = None if found is None else found.config
        return unloads_at(replica, config, self._ground.settings.keep_alive)
