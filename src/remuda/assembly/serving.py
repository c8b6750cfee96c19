"""Builds serving on a frontend: from requests to replicas, and from configured models to loaded ones."""

import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from remuda.assembly.adopted_servers import ServerRig
from remuda.assembly.model_sources import holder_of, model_objects, wanted_files
from remuda.assembly.operations import FrontendParts, Workshop
from remuda.assembly.routing import LookedAfter, RoutingRig, open_links, work_checks
from remuda.assembly.running import Runner, background
from remuda.assembly.scheduling_seeds import SchedulingSeeds, seeds_of
from remuda.assembly.settings import FrontendSettings
from remuda.assembly.starter import STARTER
from remuda.core.ids import MachineId
from remuda.fleet.identity import NodeTokens
from remuda.fleet.ports import FleetStore
from remuda.fleet.registry import Registry
from remuda.gallery.model_galleries import ModelGalleries
from remuda.gateway.inference.link_fetch import LinkFetcher
from remuda.gateway.inference.request_records import InferenceFigures, PrefixMetrics
from remuda.gateway.requests_under_way import Running
from remuda.gateway.responses.keeper import ResponseKeeper
from remuda.gateway.services import GivenFiles, Inference, Serving
from remuda.inference.model import ReplicaEndpoint
from remuda.model_installs import configured
from remuda.model_installs.fit_preview import ProspectDeps, Prospects
from remuda.model_installs.installer import Installer, InstallerDeps
from remuda.model_installs.library import ModelLibrary
from remuda.model_installs.ports import ModelHub
from remuda.model_installs.remover import Remover
from remuda.model_installs.rooms import node_rooms, runnable_backend
from remuda.model_installs.service import ModelInstalls
from remuda.model_installs.uploads import HubsAndUploads, ModelUploads
from remuda.model_installs.work import BoardTeller, ModelFileWork
from remuda.models.file_hashes import FileHashes
from remuda.router.cold_path import ColdPath, UnknownModels
from remuda.router.confirmation import Confirming
from remuda.router.dispatch import RequestDispatcher, WaitLimits
from remuda.router.live_table import TableKeeper, Tables, TableSources, close_stale_connections
from remuda.router.suspects import Suspects
from remuda.router.usage import LastUsedWriter, PeerLoads, RequestLedger
from remuda.scheduler.benchmarks import RankedBenchmarks
from remuda.scheduler.catalogue import ModelCatalogue, ModelFolder
from remuda.scheduler.claimed_names import ClaimedNames
from remuda.scheduler.demand import Demand
from remuda.scheduler.file_holders import FileHolders
from remuda.scheduler.file_room import FileRoom, FileRoomDeps
from remuda.scheduler.inspection import Inspector
from remuda.scheduler.loader import Loader, LoaderDeps, LoadLimits, ReplicaWork
from remuda.scheduler.memory_keeper import MemoryKeeper
from remuda.scheduler.model import Replica, Replicas
from remuda.scheduler.model_edits import ModelEdits
from remuda.scheduler.ports import FilePush
from remuda.scheduler.replica_goals import may_be_spared
from remuda.scheduler.replica_keeper import KeeperDeps, ReplicaKeeper
from remuda.scheduler.replica_placer import PlacementInputs, ReplicaPlacer
from remuda.scheduler.scheduling_edits import SchedulingEdits
from remuda.scheduler.service import Models
from remuda.scheduler.stager import Stager, StagerDeps
from remuda.scheduler.staging_broadcasts import StagingBroadcasts
from remuda.scheduler.unloader import Unloader, UnloadRequests
from remuda.scheduler.upkeep import DriftRepair, Upkeep, UpkeepPolicy
from remuda.scheduler.upkeep_rules import kept_as_routed, unloads_at
from remuda.scheduler.worker_calls import BusWorker
from remuda.store.benchmarks import SqlBenchmarkStore
from remuda.store.measurements import SqlMemoryStore
from remuda.store.replicas import SqlModelStore, SqlReplicaStore
from remuda.store.responses import SqlResponseStore
from remuda.store.scheduling import SqlSchedulingStore
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.grpc.upstream import GrpcTimeouts, GrpcUpstream, SharedTranslation
from remuda.upstreams.http import request_files
from remuda.upstreams.http.client import HttpTimeouts, Pool
from remuda.upstreams.http.worker import HttpWorker
from remuda.upstreams.pool import OpenUpstreams


@dataclass(frozen=True, slots=True)
class ServingDeps:
    """What a frontend has before it serves. `own_machines`: workers that share our folder of models. `url`:
    where others reach it."""

    parts: FrontendParts
    models_path: Path
    fleet: FleetStore
    registry: Registry
    tokens: NodeTokens
    own_machines: Collection[MachineId]
    figures: CollectorRegistry
    url: str


def waits_of(settings: FrontendSettings) -> WaitLimits:
    """A load is waited for as long as it takes where the setting is 0."""
    return WaitLimits(
        settings.model_load_wait.total_seconds() or None,
        settings.request_wait.total_seconds(),
        settings.requests_waiting_max,
    )


def load_limits_of(settings: FrontendSettings) -> LoadLimits:
    return LoadLimits(settings.nats_backend_install_timeout, settings.nats_model_load_timeout)


class ServingRig:
    """The parts, put together in two steps: operations carry out loads, and loads need operations."""

    def __init__(
        self,
        ground: ServingDeps,
        hubs: ModelHub,
        library: ModelLibrary,
        galleries: ModelGalleries,
        push: FilePush,
    ) -> None:
        self._ground = ground
        self._push = push
        self._galleries = galleries
        self._hubs = hubs
        self._library = library
        self._uploads = ModelUploads(library, ground.parts.clock, ground.parts.entropy)
        settings, clock = ground.parts.settings, ground.parts.clock
        self._replicas = SqlReplicaStore(ground.parts.database)
        self._model_store = SqlModelStore(ground.parts.database)
        self._scheduling = SqlSchedulingStore(ground.parts.database)
        self._catalogue = ModelCatalogue(self._model_store, ground.models_path, ground.parts.frontend)
        self._tables, self._ledger = Tables(), RequestLedger()
        self._servers = ServerRig(ground.parts.database, clock, self._tables, lambda: self._keeper.refresh())
        self._keeper = self._table_keeper()
        self._peers = PeerLoads(
            ground.parts.frontend,
            self._tables,
            self._ledger,
            ground.parts.bus,
            clock,
            listening=ground.fleet.frontends,
        )
        self._routing = RoutingRig(
            ground.parts, self._catalogue.backend_and_size, self._tables, ground.fleet.frontends
        )
        self._worker = BusWorker(ground.parts.bus)
        self._timeouts = GrpcTimeouts(
            settings.answer_silence.total_seconds(), settings.answer_limit.total_seconds()
        )
        patience = HttpTimeouts(whole_s=self._timeouts.whole_s, silence_s=self._timeouts.silence_s)
        self._http, self._servers_http = Pool(patience), Pool(patience, peer="the server", proxied=True)
        self._engine, self._worker_http = GrpcEngine(self._http), HttpWorker(self._http)
        self._translation = SharedTranslation(clock)
        self._files_http = Pool(request_files.TIMEOUTS)
        self._request_files = request_files.RequestFiles(
            self._files_http, ground.parts.entropy, self._translation.left
        )
        self._shared = settings.distributed_shared_models
        self._hashes = FileHashes(ground.parts.folder.root / "file-hashes.json")
        self._stored = model_objects(
            ground.parts, ground.tokens, ground.models_path, self._model_store, self._hashes
        )
        self._holders = FileHolders(
            ground.parts.frontend,
            lambda: ground.url,
            self._catalogue,
            self._hashes,
            ground.parts.bus,
            clock,
            self._stored,
        )
        self._room = self._file_room()

    def _table_keeper(self) -> TableKeeper:
        ground = self._ground
        return TableKeeper(
            self._tables,
            self._ledger,
            TableSources(self._replicas, ground.registry.standings, self._catalogue, ground.tokens),
            ground.parts.bus,
            ground.parts.frontend,
            ground.parts.clock,
            extended=self._servers.watch.extended,
        )

    def _file_room(self) -> FileRoom:
        return FileRoom(
            FileRoomDeps(
                self._worker,
                self._catalogue,
                self._replicas,
                self._ground.registry.standings,
                self._ground.parts.settings.distributed_disk_headroom_check,
                self._holders.copies,
            )
        )

    def model_work(self, shop: Workshop) -> ReplicaWork:
        """What operations hand loads and unloads to."""
        self._shop, ground, parts = shop, self._ground, self._ground.parts
        self._wanted = wanted_files(parts, shop, self._catalogue, shared=self._shared)
        self._claims = ClaimedNames(shop.store, parts.signal, ground.models_path, self._hashes.of)
        self._memory = MemoryKeeper(SqlMemoryStore(parts.database), self._replicas, shop.operations.nodes)
        self._told = StagingBroadcasts(parts.bus, shop.board, parts.clock)
        deps = LoaderDeps(
            self._replicas,
            self._worker,
            self._worker_http,
            self._engine,
            self._catalogue,
            self._ground.registry.standings,
            shop.board,
            self._keeper,
            self._ground.tokens,
            self._shared,
            load_limits_of(self._ground.parts.settings),
            self._stager(shop),
            self._routing.speeds.moved_bytes,
            self._routing.speeds.took,
        )
        unloader = Unloader(
            self._replicas,
            self._worker,
            self._peers,
            shop.store.live,
            self._keeper,
            may_go=self._may_be_spared,
            took=self._routing.speeds.took,
        )
        took = self._routing.speeds.took
        return ReplicaWork(Loader(deps), unloader, self._replicas, self._keeper, took)

    def _may_be_spared(self, seen: Replicas, replica: Replica) -> bool:
        found = self._catalogue.find(replica.key.model)
        return may_be_spared(replica, None if found is None else found.config, seen.rows)

    def file_work(self, shop: Workshop) -> ModelFileWork:
        """What operations hand installs and removals of models to."""
        ground, parts = self._ground, self._ground.parts
        deps = InstallerDeps(
            HubsAndUploads(self._hubs, self._uploads),
            self._library,
            self._model_store,
            partial(node_rooms, ground.registry.standings),
            BoardTeller(shop.board, parts.ticks, parts.clock),
            self._keeper,
            parts.frontend,
            partial(runnable_backend, shop.operations.look),
            frozenset({STARTER}),
        )
        self._remover = Remover(
            self._library, self._model_store, shop.store, self._keeper, self._uploads, parts.clock
        )
        return ModelFileWork(Installer(deps, configured.begin), self._remover, self._uploads)

    def _installs(self) -> ModelInstalls:
        ground, parts = self._ground, self._ground.parts
        return ModelInstalls(
            self._shop.store,
            self._model_store,
            self._galleries.readings_for,
            self._galleries.composed,
            ground.registry.standings,
            clock=parts.clock,
            entropy=parts.entropy,
            signal=parts.signal,
            own_machines=ground.own_machines,
            shared=self._shared,
            models_path=ground.models_path,
            uploads=self._uploads,
            holder=holder_of(parts),
            local_sources=parts.settings.allow_local_sources,
            figures=parts.figures,
            claims=self._claims,
        )

    def _stager(self, shop: Workshop) -> Stager:
        ground = self._ground
        return Stager(
            StagerDeps(
                self._worker,
                self._catalogue,
                self._hashes,
                ground.registry.standings,
                shop.board,
                self._replicas,
                ground.tokens,
                ground.parts.clock,
                self._holders,
                ground.own_machines,
                self._push,
                self._shared,
                self._room,
                self._told,
            )
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[tuple[Serving, Inference]]:
        """Requests are answered for as long as the block lasts."""
        ground, settings, clock = self._ground, self._ground.parts.settings, self._ground.parts.clock
        seeds = seeds_of(settings)
        unloads = self._unloads()
        placing = self._placing(unloads)
        suspects = self._suspects()
        demand = self._demand(placing, suspects)
        cold = self._cold_path(demand, suspects)
        folder = self._followed_folder()
        figures = InferenceFigures(ground.figures, self._tables, self._ledger, self._routing.speeds.answered)
        ground.figures.register(PrefixMetrics(self._routing.chooser.figures))
        upstreams = OpenUpstreams(clock, http=self._http, servers=self._servers_http, grpc_factory=self._grpc)
        dispatcher = RequestDispatcher(
            self._tables,
            self._ledger,
            upstreams,
            self._servers.loading(cold),
            clock,
            waits_of(settings),
            figures=figures,
            budgets=self._servers.spending,
            chooser=self._routing.chooser,
        )
        models = self._models(placing, unloads)
        looked_after = LookedAfter(self._tables, upstreams, self._peers, self._ledger, self._engine)
        serving = self._serving(models, folder, cold, suspects, placing)
        runners: Sequence[Runner] = (
            *self._file_runners(),
            *self._servers.runners,
            self._translation.left.run,
            folder.run,
            self._keeper.run,
            self._peers.run,
            self._last_used().run,
            suspects.run,
            demand.run,
            self._upkeep(models, unloads).run,
            self._replica_keeper(placing, unloads).run,
            SchedulingSeeds(seeds, serving.scheduling).run,
            self._memory.run,
            *self._routing.runners,
            self._confirming().run,
            work_checks(ground.parts, looked_after, suspects, models).run,
            partial(close_stale_connections, self._tables, upstreams),
        )
        responses = self._responses()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(upstreams.aclose)
            stack.callback(self._files_http.close)
            await stack.enter_async_context(background(*runners, responses.run))
            links = await stack.enter_async_context(open_links(settings))
            yield serving, self._inference(dispatcher, figures, links, responses)

    def _file_runners(self) -> Sequence[Runner]:
        stored = () if self._stored is None else (self._stored.run,)
        return self._wanted.run, self._remover.run, self._holders.run, self._told.run, *stored

    def _serving(
        self, models: Models, folder: ModelFolder, cold: ColdPath, suspects: Suspects, placing: ReplicaPlacer
    ) -> Serving:
        ground = self._ground
        installs = self._installs()
        return Serving(
            models,
            ModelEdits(models, self._model_store, self._shop.store, folder, self._keeper),
            SchedulingEdits(
                self._scheduling,
                self._catalogue,
                self._replicas,
                ground.parts.clock,
                table=self._keeper,
                nodes=self._shop.operations.nodes,
            ),
            installs,
            self._uploads,
            self._galleries,
            self._peers.everywhere,
            self._unloads_at,
            cold.look,
            self._keeper,
            suspects.nodes_out_of_reach,
            GivenFiles(ground.models_path, ground.tokens.model_files, ground.parts.clock),
            self._room,
            self._prospects(installs, placing),
            RankedBenchmarks(
                SqlBenchmarkStore(ground.parts.database),
                ground.registry.standings,
                self._routing.speeds.benchmarked,
            ),
            self._servers.service({ground.parts.settings.port}),
            self._told.heard,
            self._memory.of,
            self._wanted,
            self._stored,
        )

    def _prospects(self, installs: ModelInstalls, placing: ReplicaPlacer) -> Prospects:
        deps = ProspectDeps(
            installs.wanted,
            HubsAndUploads(self._hubs, self._uploads),
            partial(node_rooms, self._ground.registry.standings),
            partial(runnable_backend, self._shop.operations.look),
            placing,
            self._ground.parts.clock,
        )
        return Prospects(deps)

    def _inference(
        self,
        dispatcher: RequestDispatcher,
        figures: InferenceFigures,
        links: LinkFetcher,
        responses: ResponseKeeper,
    ) -> Inference:
        settings = self._ground.parts.settings
        return Inference(
            dispatcher,
            self._tables,
            figures,
            Running(settings.shutdown_grace.total_seconds()),
            body_bytes_max=settings.request_bytes_max,
            expose_node=settings.expose_node_header,
            refresh_models=UnknownModels(self._keeper.refresh, self._ground.parts.clock).look,
            responses=responses,
            links=links,
            decisions=self._routing.decisions,
            explanations=self._routing.explanations,
        )

    def _responses(self) -> ResponseKeeper:
        parts = self._ground.parts
        store = SqlResponseStore(parts.database)
        kept, most = parts.settings.response_retention, parts.settings.response_bytes_max
        return ResponseKeeper(store, kept, most, (parts.bus, parts.frontend))

    def _followed_folder(self) -> ModelFolder:
        return ModelFolder(
            self._ground.models_path,
            self._model_store,
            self._ground.parts.frontend,
            self._keeper,
            self._catalogue.files_refused,
            host=socket.gethostname(),
        )

    def _cold_path(self, demand: Demand, suspects: Suspects) -> ColdPath:
        clock, is_removed = self._ground.parts.clock, self._ground.registry.is_removed
        return ColdPath(demand, self._tables, suspects, clock, is_removed=is_removed)

    def _unloads(self) -> UnloadRequests:
        ground = self._ground
        return UnloadRequests(
            self._shop.store,
            ground.registry.standings,
            ground.parts.clock,
            ground.parts.entropy,
            ground.parts.signal,
        )

    def _placing(self, unloads: UnloadRequests) -> ReplicaPlacer:
        ground = self._ground
        by = PlacementInputs(
            self._shop.operations.look,
            self._peers.everywhere,
            ground.own_machines,
            self._shared,
            ground.parts.settings.distributed_disk_headroom_check,
            ground.parts.frontend,
            self._holders.needed,
            self._room,
            self._memory.known,
            self._routing.speeds.known,
        )
        return ReplicaPlacer(
            self._replicas,
            self._catalogue,
            by,
            unloads,
            clock=ground.parts.clock,
            entropy=ground.parts.entropy,
            table=self._keeper,
            signal=ground.parts.signal,
        )

    def _models(self, placing: ReplicaPlacer, unloads: UnloadRequests) -> Models:
        return Models(
            self._catalogue,
            self._model_store,
            self._replicas,
            self._shop.store,
            placing,
            unloads,
            self._ground.registry.standings,
            table=self._keeper,
            claims=self._claims,
            fetches=self._wanted,
        )

    def _demand(self, placing: ReplicaPlacer, suspects: Suspects) -> Demand:
        return Demand(
            self._replicas,
            self._shop.store,
            self._catalogue,
            placing,
            self._ground.parts.clock,
            table=self._keeper,
            out_of_reach=suspects,
            progress=self._shop.board,
            fetches=self._wanted,
        )

    def _last_used(self) -> LastUsedWriter:
        parts = self._ground.parts
        return LastUsedWriter(
            self._tables,
            self._ledger,
            parts.clock,
            self._replicas,
            usual=parts.settings.keep_alive,
        )

    def _suspects(self) -> Suspects:
        inspector = Inspector(
            self._replicas,
            self._engine,
            self._worker,
            table=self._keeper,
            history=self._ground.registry,
        )
        return Suspects(self._tables, self._keeper, inspector)

    def _confirming(self) -> Confirming:
        return Confirming(
            self._tables,
            self._worker,
            self._worker_http,
            self._engine,
            self._ground.parts.clock,
            read_s=lambda: self._keeper.read_s,
        )

    def _upkeep(self, models: Models, unloads: UnloadRequests) -> Upkeep:
        store, operations = self._shop.store, self._shop.operations
        drift = DriftRepair(
            self._replicas,
            self._worker,
            operations.nodes,
            store.live,
            self._keeper,
            models,
            self._ground.registry,
        )
        return Upkeep(
            self._replicas,
            store.live,
            self._catalogue,
            drift,
            unloads,
            in_flight=self._peers.everywhere,
            table=self._keeper,
            habits=UpkeepPolicy(self._ground.parts.settings.keep_alive),
        )

    def _replica_keeper(self, placing: ReplicaPlacer, unloads: UnloadRequests) -> ReplicaKeeper:
        deps = KeeperDeps(
            self._replicas,
            self._scheduling,
            self._catalogue,
            self._shop.operations.nodes,
            placing,
            unloads,
            self._peers.everywhere,
            self._keeper,
            self._routing.chooser.hot_spots,
            self._memory.known,
        )
        return ReplicaKeeper(deps)

    def _grpc(self, endpoint: ReplicaEndpoint) -> GrpcUpstream:
        parts = self._ground.parts
        return GrpcUpstream(
            endpoint, parts.clock, parts.entropy, self._timeouts, self._translation, self._request_files
        )

    def _unloads_at(self, replica: Replica) -> datetime | None:
        found = self._catalogue.find(replica.key.model)
        config = None if found is None else found.config
        entry = self._tables.now.models.get(replica.key.model)
        if config is not None and kept_as_routed(replica.key, entry.routes if entry else (), config):
            return None
        return unloads_at(replica, config, self._ground.parts.settings.keep_alive)
