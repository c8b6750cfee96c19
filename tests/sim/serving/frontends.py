"""A frontend that serves: inside runs the real code, from the request to the process on the worker."""

import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import anyio

from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId, NodeId, ReplicaKey
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, RequestMessage
from remuda.ops.broadcast import ChangeSignal
from remuda.ops.commander import BusCommander
from remuda.ops.inventories import Inventories
from remuda.ops.progress_board import ProgressBoard, ProgressSubscription
from remuda.ops.reconciler import Reconciler
from remuda.ops.selection import nodes_to_ask
from remuda.router.cold_path import ColdPath
from remuda.router.confirmation import Confirming
from remuda.router.dispatch import RequestDispatcher, RoutingRecord, WaitLimits
from remuda.router.fairness import SeatClaim
from remuda.router.live_table import TableKeeper, Tables, TableSources
from remuda.router.loading import LoadStatus
from remuda.router.suspects import Suspects
from remuda.router.usage import LastUsedWriter, PeerLoads, RequestLedger
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.claimed_names import ClaimedNames
from remuda.scheduler.demand import Demand
from remuda.scheduler.inspection import Inspector
from remuda.scheduler.loader import Loader, LoaderDeps, LoadLimits, ReplicaWork
from remuda.scheduler.memory_keeper import MemoryKeeper
from remuda.scheduler.model import Replica, Replicas
from remuda.scheduler.replica_goals import may_be_spared
from remuda.scheduler.replica_keeper import KeeperDeps, ReplicaKeeper
from remuda.scheduler.replica_placer import PlacementInputs, ReplicaPlacer
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.scheduler.service import Models
from remuda.scheduler.unloader import Unloader, UnloadRequests
from remuda.scheduler.upkeep import DriftRepair, Upkeep, UpkeepPolicy
from remuda.scheduler.worker_calls import BusWorker
from remuda.store.measurements import SqlMemoryStore
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore, SqlReplicaStore
from remuda.store.scheduling import SqlSchedulingStore
from tests.sim.ops.bus import LinesOfFrontend, SimulatedBus
from tests.sim.ops.frontends import FrontendHost
from tests.sim.serving.engines import SimulatedEngine, SimulatedUpstreams, SimulatedWorkerHttp
from tests.sim.serving.facts import ADMIN
from tests.sim.serving.world import ServingWorld
from tests.support.answer_sinks import RelayedClient
from tests.support.clocks import elapsed_s
from tests.support.nodes import TOKENS

_LIMITS = LoadLimits(install=timedelta(seconds=120), load=timedelta(seconds=120))
_DRAIN = timedelta(seconds=60)
_WAITS = WaitLimits(load_s=60.0, seat_s=30.0)
_REQUESTS_MOST = 64
_STILL_ALIVE_S = 15.0  # So long others take a frontend that died for alive.


class ServingFrontend(FrontendHost):
    def __init__(self, world: ServingWorld, bus: SimulatedBus, number: int) -> None:
        super().__init__(world, bus, number)
        self.serving = 0  # Requests that are with a backend.
        self.open_requests: dict[int, tuple[str, float]] = {}  # Their models, and since when.
        self.fleet_known_s = -math.inf  # It knows at least what was so of nodes then,
        self.models_known_s = -math.inf  # and of models.
        self._asked = 0
        self._world: ServingWorld = world
        self._parts: Parts | None = None
        self._died_s = -math.inf

    @property
    def held(self) -> Mapping[ReplicaKey, int]:
        return {} if self._parts is None else self._parts.ledger.own()

    def heard_of(self, key: ReplicaKey) -> int:
        """Requests with that replica, as far as it has heard."""
        return 0 if self._parts is None else self._parts.peers.everywhere(key)

    def lives_for_others(self) -> bool:
        return self.up or elapsed_s() - self._died_s < _STILL_ALIVE_S

    def blind_within(self, seconds: float) -> bool:
        """Whether it could not read the store for a moment, lately."""
        return elapsed_s() - self.database.failed_s < seconds

    def notes_use_since(self, begun_s: float) -> bool:
        """Whether it could write down all along what was used."""
        return self.up and max(self._died_s, self.database.failed_s) < begun_s

    def crash(self, when: str) -> None:
        self._died_s = elapsed_s()
        super().crash(when)
        self._parts = None

    # What people do.

    def ask(self, model: str, patience_s: float, key: str = "") -> None:
        if self._tasks is not None and self._parts is not None:
            self._tasks.start_soon(self._serve_request, self._parts, model, patience_s, key)

    async def _serve_request(self, parts: "Parts", model: str, patience_s: float, key: str) -> None:
        entry = parts.tables.now.models.get(model)
        if entry is None:
            return
        request = ChatRequest(model=model, messages=[RequestMessage("user", "hello")])
        self._asked += 1
        number, requests = self._asked, self._world.serving_claims.requests
        call = InferenceCall(RequestKind.CHAT, request, b"{}", entry.config, f"{self.id}/{number}", 0)
        requests.turns.waiting(self, call.request_id, key, model)
        self.open_requests[number] = (model, elapsed_s())
        try:
            with anyio.move_on_after(patience_s):
                record = RoutingRecord(claim=SeatClaim(key))
                await parts.dispatcher.answer(call, RelayedClient(), record, _meanwhile)
        except RemudaError as error:
            requests.refused(self, model, error)
        finally:
            requests.turns.waits_no_more(call.request_id)
            del self.open_requests[number]

    def configure(self, text: str) -> None:
        self.do(lambda parts: self._change_models(parts.models().add(text)))

    def remove_model(self, model: str) -> None:
        self.do(lambda parts: self._change_models(parts.models().remove(model, ADMIN)))

    async def _change_models(self, change: Awaitable[object]) -> None:
        begun_s = elapsed_s()
        await change
        if self.database.failed_s < begun_s:
            self.models_known_s = begun_s

    def declare(self, model: str, terms: SchedulingTerms | None) -> None:
        """How many replicas it has, whatever its YAML says. None: what that says."""
        self.do(lambda parts: self._change_models(parts.declare(model, terms)))

    def load(self, model: str) -> None:
        self.do(lambda parts: parts.models().load(model, ADMIN))

    def unload(self, model: str) -> None:
        self.do(lambda parts: self._unload(parts, model))

    async def _unload(self, parts: "Parts", model: str) -> None:
        claims = self._world.serving_claims
        meant = claims.of_model(model)
        await parts.models().unload(model, ADMIN)
        claims.was_unloaded(meant & claims.of_model(model))

    def hear_of_nodes(self) -> None:
        """An admin has just changed one, here."""
        self.do(self._look_at_nodes)

    async def _look_at_nodes(self, parts: "Parts") -> None:
        begun_s = elapsed_s()
        await parts.keeper.fleet_changed()
        if self.database.failed_s < begun_s:
            self.fleet_known_s = begun_s

    def do(self, work: "Callable[[Parts], Awaitable[object]]") -> None:
        """An admin's request; it dies with the frontend."""
        if (parts := self._parts) is not None:
            self.command(lambda store: work(parts))

    # Its life.

    async def listening(self) -> Collection[FrontendId]:
        await self.database.travel()
        return [one.id for one in self._world.hosts if one.lives_for_others()]

    async def _live(self) -> None:
        self.lives += 1
        lines = LinesOfFrontend(self._world, self._bus, self.dice, self.crash)
        parts = Parts(self._world, self, lines)
        async with anyio.create_task_group() as tasks:
            self._tasks, self._signal, self._parts = tasks, parts.signal, parts
            self._world.trace.event("up", self.id)
            for runner in parts.runners:
                await tasks.start(runner)
        lines.hang_up()


class Parts:
    """What one life of a frontend is made of, put together as in service."""

    def __init__(self, world: ServingWorld, host: ServingFrontend, lines: LinesOfFrontend) -> None:
        self._world, self._host, self._lines = world, host, lines
        self._operations = SqlOpStore(host.database)
        self._replicas = SqlReplicaStore(host.database)
        self._model_store = SqlModelStore(host.database)
        self._catalogue = ModelCatalogue(self._model_store, Path("/nowhere"))
        self._views, self._scheduling = ObservedNodes(), SqlSchedulingStore(host.database)
        self._memory = MemoryKeeper(SqlMemoryStore(host.database), self._replicas, self._nodes)
        self._worker, self._engine = BusWorker(lines), SimulatedEngine(world, host)
        self._worker_http = SimulatedWorkerHttp(world)
        self.signal = ChangeSignal(lines, host.id, world.pace.signal_gap)
        self.tables, self.ledger = Tables(), RequestLedger()
        self.keeper = self._make_keeper()
        self.peers = self._make_peers()
        self._board = ProgressBoard(self._operations, host.clock, world.pace.write_progress_every)
        self._commander = self._make_commander()
        self._inventories = Inventories(
            lines, self._operations, host.clock, self.signal, world.pace.list_every
        )
        self._unloads = UnloadRequests(self._operations, host.standings, host.clock, host.dice, self.signal)
        self._placing = self._make_placing()
        self._suspects = Suspects(
            self.tables,
            self.keeper,
            Inspector(
                self._replicas,
                self._engine,
                self._worker,
                table=self.keeper,
                history=_NoHistory(),
            ),
        )
        self._demand = self._make_demand()
        self.dispatcher = self._make_dispatcher()

    @property
    def runners(self) -> Sequence[Callable[..., Coroutine[None, None, None]]]:
        return (
            self.signal.run,
            self._board.run,
            self._commander.run,
            self._inventories.run,
            self._make_reconciler().run,
            self.keeper.run,
            self.peers.run,
            self._make_last_used().run,
            self._suspects.run,
            self._demand.run,
            self._make_upkeep().run,
            self._make_replica_keeper().run,
            self._make_confirming().run,
            *([self._memory.run] if len(self._world.size.measured) > 1 else []),
        )

    def models(self) -> Models:
        return Models(
            self._catalogue,
            self._model_store,
            self._replicas,
            self._operations,
            self._placing,
            self._unloads,
            self._host.standings,
            table=self.keeper,
            claims=ClaimedNames(self._operations, self.signal, self._catalogue.models_path, _no_file),
        )

    async def declare(self, model: str, terms: SchedulingTerms | None) -> None:
        if terms is None:
            await self._scheduling.remove_scheduling(model)
        else:
            await self._scheduling.put_scheduling(model, terms)
        self.keeper.rows_changed()

    def _make_keeper(self) -> TableKeeper:
        sources = TableSources(self._replicas, self._host.standings, self._catalogue, TOKENS)
        return TableKeeper(
            self.tables,
            self.ledger,
            sources,
            self._lines,
            self._host.id,
            self._host.clock,
            every_s=self._world.size.rests.table_s,
        )

    def _make_peers(self) -> PeerLoads:
        return PeerLoads(
            self._host.id,
            self.tables,
            self.ledger,
            self._lines,
            self._host.clock,
            listening=self._host.listening,
            every_s=self._world.size.rests.tell_s,
        )

    def _make_last_used(self) -> LastUsedWriter:
        return LastUsedWriter(
            self.tables,
            self.ledger,
            self._host.clock,
            self._replicas,
            usual=self._world.keep_alive,
        )

    def _make_commander(self) -> BusCommander:
        deps = LoaderDeps(
            self._replicas,
            self._worker,
            self._worker_http,
            self._engine,
            self._catalogue,
            self._host.standings,
            self._board,
            self.keeper,
            TOKENS,
            self._world.shared,
            limits=_LIMITS,
        )
        unloader = Unloader(
            self._replicas,
            self._worker,
            self.peers,
            self._operations.live,
            self.keeper,
            _DRAIN,
            may_go=self._may_be_spared,
        )
        return BusCommander(
            self._lines,
            self._operations,
            self._board,
            ProgressSubscription(self._lines, self._board.take),
            self._host.clock,
            timeouts=self._world.pace.timeouts,
            at_once_max=_REQUESTS_MOST,
            bus_trouble=self._host.trouble,
            signal=self.signal,
            model_work=ReplicaWork(Loader(deps), unloader, self._replicas, self.keeper),
        )

    def _make_reconciler(self) -> Reconciler:
        pace = self._world.pace
        return Reconciler(
            self._operations,
            self._host.standings,
            self._commander,
            self._inventories,
            self.signal,
            frontend=self._host.id,
            clock=self._host.clock,
            entropy=self._host.dice,
            timeouts=pace.timeouts,
            policy=pace.policy,
            bus_trouble=self._host.trouble,
            pace=pace.looks,
        )

    def _make_placing(self) -> ReplicaPlacer:
        return ReplicaPlacer(
            self._replicas,
            self._catalogue,
            PlacementInputs(
                self._look, self.peers.everywhere, shared=self._world.shared, memory=self._memory.known
            ),
            self._unloads,
            clock=self._host.clock,
            entropy=self._host.dice,
            table=self.keeper,
            signal=self.signal,
        )

    def _make_demand(self) -> Demand:
        return Demand(
            self._replicas,
            self._operations,
            self._catalogue,
            self._placing,
            self._host.clock,
            table=self.keeper,
            out_of_reach=self._suspects,
            progress=self._board,
        )

    def _make_dispatcher(self) -> RequestDispatcher:
        clock = self._host.clock
        cold = ColdPath(
            self._demand,
            self.tables,
            self._suspects,
            clock,
            is_removed=_never,
        )
        upstreams = SimulatedUpstreams(self._world, self._host)
        return RequestDispatcher(self.tables, self.ledger, upstreams, cold, clock, _WAITS)

    def _make_confirming(self) -> Confirming:
        return Confirming(
            self.tables,
            self._worker,
            self._worker_http,
            self._engine,
            self._host.clock,
            read_s=lambda: self.keeper.read_s,
            every_s=self._world.size.rests.confirm_s,
            stale_s=2 * self._world.size.rests.table_s,
        )

    def _make_upkeep(self) -> Upkeep:
        live = self._operations.live
        return Upkeep(
            self._replicas,
            live,
            self._catalogue,
            DriftRepair(
                self._replicas,
                self._worker,
                self._nodes,
                live,
                self.keeper,
                self.models(),
                _NoHistory(),
            ),
            self._unloads,
            in_flight=self.peers.everywhere,
            table=self.keeper,
            habits=UpkeepPolicy(self._world.keep_alive),
        )

    def _may_be_spared(self, seen: Replicas, replica: Replica) -> bool:
        found = self._catalogue.find(replica.key.model)
        return may_be_spared(replica, None if found is None else found.config, seen.rows)

    def _make_replica_keeper(self) -> ReplicaKeeper:
        return ReplicaKeeper(
            KeeperDeps(
                self._replicas,
                self._scheduling,
                self._catalogue,
                self._nodes,
                self._placing,
                self._unloads,
                self.peers.everywhere,
                self.keeper,
            )
        )

    async def _nodes(self) -> Sequence[ObservedNode]:
        listed = await self._operations.inventories()
        return list(self._views.of(await self._host.standings(), listed).values())

    async def _look(self) -> tuple[Sequence[ObservedNode], Sequence[Reading]]:
        listed = await self._operations.inventories()
        nodes = list(self._views.of(await self._host.standings(), listed).values())
        self._inventories.want(nodes_to_ask(nodes))
        return nodes, ()


async def _meanwhile(status: LoadStatus) -> None:
    return None


async def _no_file(path: Path) -> str:
    """None is installed in simulation."""
    return ""


async def _never(node: NodeId) -> bool:
    """No node is removed here."""
    return False


class _NoHistory:
    async def note_lost(self, node_id: NodeId, replica: str, why: str, instance: str = "") -> None:
        return None
