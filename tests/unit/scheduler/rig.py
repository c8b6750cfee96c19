"""One frontend's scheduler on a database in memory, with workers and backends that do what a test says."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import anyio

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import BackendFailed, NodeUnreachable, Problem, RemudaError
from remuda.core.ids import BootId, FrontendId, NodeId, ReplicaKey
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods, Standing
from remuda.fleet.model import Resources
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.models.files import NeededFile
from remuda.models.needed_files import needed_files
from remuda.models.reading import read_model
from remuda.ops.model import OpId, ReplicaTarget, Source, State, Step
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.loader import Loader, LoaderDeps, LoadLimits
from remuda.scheduler.measured_speed import Rate
from remuda.scheduler.model import Place, Replica, ReplicaState, StoredModel, load_operation
from remuda.scheduler.seen_facts import Weights
from remuda.scheduler.stager import Stager
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore, SqlReplicaStore
from remuda.wire.backends import BackendInstall, BackendInstallReply, BackendListReply, InstalledBackend
from remuda.wire.models import ModelsRunningReply, ModelStop, ModelStopReply, RunningModel
from remuda.wire.nodes import InstalledArtifact, ModelFile, Report, RunningReplica, Work
from tests.support.clocks import START, HostClock
from tests.support.inline_database import InlineDatabase
from tests.support.nodes import THRESHOLDS, TOKENS
from tests.support.nodes import node as fleet_node
from tests.support.op_tables import fresh_tables, node_id
from tests.support.reports import stored

GB = 10**9
NODE, OTHER_NODE = node_id(0), node_id(1)
OURS, OTHERS = FrontendId("ours"), FrontendId("others")
YAML = "name: qwen\nbackend: llama-cpp\nparameters: {model: qwen.gguf}\n"


def a_model(name: str = "qwen", more: str = "") -> str:
    return f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {name}.gguf}}\n{more}"


class InlineCatalogue(ModelCatalogue):
    """In virtual time there are no threads."""

    async def refresh(self) -> None:
        self._known = self._read(await self._store.models())

    async def weights(self, config: ModelConfig) -> Weights:
        return self._weights(config, {})[0]

    async def files(self, model: Catalogued) -> tuple[NeededFile, ...]:
        return needed_files(self._models_path, model.config, model.stored.manifest)


@dataclass
class Machine:
    """A node, as it would tell of itself. `silent_s`: so long ago it was heard last."""

    id: NodeId
    name: str
    boot: str = "boot-1"
    address: str = "10.0.0.5:50051"
    ram_gb: float = 64.0
    used_gb: float = 0.0
    vram_gb: float = 0.0
    disk_full: bool = False
    reports: bool = True
    silent_s: float = 0.0
    sequence: int = 1
    installed: tuple[str, ...] = ("llama-cpp",)
    builds_for: str = "cpu"
    models_path: str = ""
    files: dict[str, int] = field(default_factory=dict)
    running: tuple[RunningReplica, ...] = ()
    work: tuple[Work, ...] = ()
    drained: bool = False
    approved: bool = True

    def standing(self, clock: HostClock) -> Standing:
        now, boot = clock.now(), BootId(self.boot)
        report = Report(
            boot_id=boot,
            sequence=self.sequence,
            installed=tuple(
                InstalledArtifact(name=f"{self.builds_for}-{one}", alias=one) for one in self.installed
            ),
            replicas=self.running,
            work=self.work,
            models_path=self.models_path,
            model_files=tuple(ModelFile(path=path, size=size) for path, size in self.files.items()),
        )
        node = fleet_node(
            id=self.id,
            name=self.name,
            boot_id=boot,
            address=self.address,
            version="0.1.0" if self.reports else "",
            drained=self.drained,
            approved=self.approved,
            report=stored(report) if self.reports else None,
            resources=Resources(
                total_vram=int(self.vram_gb * GB),
                available_vram=int(self.vram_gb * GB),
                total_ram=int(self.ram_gb * GB),
                available_ram=int((self.ram_gb - self.used_gb) * GB),
                total_disk=100 * GB if self.disk_full else 0,
            ),
            last_heartbeat=now - timedelta(seconds=self.silent_s),
        )
        hearing = ListeningPeriods((ListeningPeriod(START - timedelta(hours=1), now),))
        return Fleet(now, hearing, [node]).standing(node, THRESHOLDS)


class ScriptedWorker:
    """Implements scheduler.ports.WorkerBus for all nodes. What was asked of it is in `asked`, in order."""

    def __init__(self) -> None:
        self.asked: list[BackendInstall | ModelStop] = []
        self.stopped_unheard: list[tuple[NodeId, ReplicaKey]] = []
        self.reply = BackendInstallReply(success=True, address="10.0.0.5:50100", instance="i-1")
        self.takes_s = 0.0
        self.stop_takes_s = 0.0
        self.trouble: RemudaError | None = None  # With installs,
        self.trouble_ends_s = float("inf")  # by the loop's clock until then.
        self.stop_trouble: RemudaError | None = None
        self.stop_reply = ModelStopReply(matched=True, terminated=True)
        self.stop_replies: list[ModelStopReply] = []  # Before that one.
        self.runs: dict[NodeId, Sequence[RunningModel]] = {}
        self.builds: tuple[str, ...] = ("cpu-llama-cpp",)  # On every node.

    @property
    def installs(self) -> list[BackendInstall]:
        return [one for one in self.asked if isinstance(one, BackendInstall)]

    @property
    def stopped(self) -> list[str]:
        return [one.instance for one in self.asked if isinstance(one, ModelStop)]

    async def install(self, node: NodeId, request: BackendInstall) -> BackendInstallReply:
        self.asked.append(request)
        await anyio.sleep(self.takes_s)
        if self.trouble is not None and anyio.current_time() < self.trouble_ends_s:
            raise self.trouble
        return self.reply

    async def stop(self, node: NodeId, request: ModelStop) -> ModelStopReply:
        self.asked.append(request)
        await anyio.sleep(self.stop_takes_s)
        if self.stop_trouble is not None:
            raise self.stop_trouble
        return self.stop_replies.pop(0) if self.stop_replies else self.stop_reply

    async def stop_unheard(self, node: NodeId, key: ReplicaKey) -> None:
        self.stopped_unheard.append((node, key))

    async def running(self, node: NodeId) -> ModelsRunningReply:
        if node not in self.runs:
            raise NodeUnreachable(f"{node} does not listen")
        return ModelsRunningReply(models=tuple(self.runs[node]))

    async def installed(self, node: NodeId) -> BackendListReply:
        return BackendListReply(backends=tuple(InstalledBackend(name=one) for one in self.builds))


class ScriptedWorkerHttp:
    """Implements scheduler.ports.WorkerHttp: the same worker everywhere."""

    def __init__(self) -> None:
        self.up = True
        self.older_release = False
        self.runs: Sequence[RunningModel] = ()
        self.asked: list[ReplicaEndpoint] = []

    async def running(self, server: ReplicaEndpoint) -> ModelsRunningReply | None:
        self.asked.append(server)
        if not self.up:
            raise NodeUnreachable("it does not answer")
        return None if self.older_release else ModelsRunningReply(models=tuple(self.runs))

    async def answers(self, server: ReplicaEndpoint) -> bool:
        self.asked.append(server)
        return self.up


class ScriptedEngine:
    """Implements scheduler.ports.ReplicaEngine."""

    def __init__(self) -> None:
        self.loads: list[tuple[ReplicaEndpoint, str, Place]] = []
        self.probed: list[ReplicaEndpoint] = []
        self.takes_s = 0.0
        self.refusal = ""
        self.health: list[bool | None] = []  # One after another; then it is well.

    async def load(self, endpoint: ReplicaEndpoint, model: ModelConfig, place: Place) -> None:
        self.loads.append((endpoint, model.id, place))
        await anyio.sleep(self.takes_s)
        if self.refusal:
            raise BackendFailed(self.refusal)

    async def healthy(self, endpoint: ReplicaEndpoint) -> bool | None:
        self.probed.append(endpoint)
        return self.health.pop(0) if self.health else True


@dataclass
class ScriptedFrontends:
    """Implements scheduler.ports.Frontends."""

    living: Collection[FrontendId] = (OURS,)
    seen: dict[FrontendId, int] = field(default_factory=lambda: {OURS: 1 << 30})
    held: dict[tuple[FrontendId, ReplicaKey], int] = field(default_factory=dict)

    async def alive(self) -> Collection[FrontendId]:
        return self.living

    def has_seen(self, frontend: FrontendId, change: int) -> bool:
        return self.seen.get(frontend, 0) >= change

    def in_flight(self, frontend: FrontendId, key: ReplicaKey) -> int:
        return self.held.get((frontend, key), 0)


class Rig:
    """`changes` counts how often everybody was told that rows were written."""

    def __init__(self, models_path: Path = Path("/models")) -> None:
        self.clock = HostClock()
        self.database = InlineDatabase(fresh_tables(self.clock).connections)
        self.replicas = SqlReplicaStore(self.database)
        self.models = SqlModelStore(self.database)
        self.operations = SqlOpStore(self.database)
        self.catalogue = InlineCatalogue(self.models, models_path)
        self.worker, self.engine, self.frontends = ScriptedWorker(), ScriptedEngine(), ScriptedFrontends()
        self.worker_http = ScriptedWorkerHttp()
        self.machines = [Machine(NODE, "gpu-1"), Machine(OTHER_NODE, "gpu-2")]
        self.entropy = SeededEntropy(1)
        self.changes = 0
        self.lost: list[tuple[NodeId, str]] = []
        self.moved_bytes = 0.0
        self.took: list[tuple[Rate, NodeId, str, float]] = []
        self.phases: list[str] = []
        self.signals = 0
        self.views_of = ObservedNodes()

    # As the table of a frontend that routes nothing.

    def rows_changed(self) -> None:
        self.changes += 1

    async def refresh(self) -> None:
        pass

    def routable(self, model: str) -> bool:
        return False

    @property
    def next_change(self) -> anyio.Event:
        return anyio.Event()

    # As the progress of a load, the signal of operations and the history of nodes.

    def moved(self, step: Step) -> float:
        return self.moved_bytes

    def enter(self, step: Step, phase: str) -> None:
        self.phases.append(phase)

    def notify(self) -> None:
        self.signals += 1

    async def note_lost(self, node_id: NodeId, replica: str, why: str, instance: str = "") -> None:
        self.lost.append((node_id, f"{replica}: {why}"))

    @property
    def machine(self) -> Machine:
        return self.machines[0]

    def note_took(self, kind: Rate, node: NodeId, model: str, seconds: float) -> None:
        self.took.append((kind, node, model, seconds))

    async def standings(self) -> Sequence[Standing]:
        return [one.standing(self.clock) for one in self.machines]

    async def nodes(self) -> Sequence[ObservedNode]:
        return list(self.views_of.of(await self.standings(), ()).values())

    async def configure(self, *texts: str) -> None:
        for text in texts or (YAML,):
            config = read_model(text)
            await self.models.put_model(StoredModel(config.id, text, config.revision, "added"))
        await self.catalogue.refresh()

    def loader(
        self, limits: LoadLimits | None = None, *, shared: bool = False, stager: Stager | None = None
    ) -> Loader:
        return Loader(
            LoaderDeps(
                self.replicas,
                self.worker,
                self.worker_http,
                self.engine,
                self.catalogue,
                self.standings,
                self,
                self,
                TOKENS,
                shared,
                limits or LoadLimits(),
                stager,
                took=self.note_took,
            )
        )

    async def rows(self) -> tuple[Replica, ...]:
        return (await self.replicas.replicas()).rows

    async def row(self, model: str = "qwen") -> Replica:
        return next(row for row in await self.rows() if row.key.model == model)

    async def claimed(
        self, model: str = "qwen", node: NodeId = NODE, index: int = 0, *, evict: Sequence[ReplicaKey] = ()
    ) -> tuple[Replica, Step]:
        """A replica that is to be loaded, and the step that is to do it, at its first attempt."""
        found = self.catalogue.find(model)
        revision = "" if found is None else found.config.revision
        key, op = ReplicaKey(model, index), OpId(self.entropy.uuid())
        target, source = ReplicaTarget(key, revision), Source("llama-cpp", galleries="[]")
        operation, step = load_operation(op, target, source, node, "gpu-1", by="test", now=self.clock.now())
        replica = Replica(key, node, ReplicaState.STAGING, op, "llama-cpp", revision, memory_bytes=GB)
        seen = await self.replicas.replicas()
        claimed = await self.replicas.claim(replica, operation, step, seen.change, evict)
        assert claimed is not None
        return claimed, replace(step, state=State.RUNNING, attempt=1)

    async def loaded(self, model: str = "qwen", node: NodeId = NODE, index: int = 0) -> Replica:
        """One that serves."""
        claimed, step = await self.claimed(model, node, index)
        serving = replace(
            claimed,
            state=ReplicaState.LOADED,
            address="10.0.0.5:50100",
            instance=f"i-{model}-{index}",
            boot=BootId("boot-1"),
        )
        written = await self.replicas.move(claimed, serving)
        assert written is not None
        await self.over(step)
        return written

    async def over(self, step: Step, state: State = State.SUCCEEDED, problem: Problem | None = None) -> None:
        """Its operation ends."""
        [stored] = (await self.operations.view(step.op)).steps
        ended = replace(stored, state=state, problem=problem)
        await self.operations.commit([ended], OURS, timedelta(seconds=60))

    def runs(self, *rows: Replica, state: str = "ready") -> tuple[RunningReplica, ...]:
        """What its worker says of these."""
        return tuple(
            RunningReplica(
                model_id=row.key.model,
                replica_index=row.key.index,
                backend=row.backend,
                address=row.address,
                state=state,
                instance=row.instance,
            )
            for row in rows
        )
