"""Simulated workers with memory and processes, which start and end, crash, and come back empty."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import anyio
from anyio.lowlevel import checkpoint

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.model import Resources, StoredReport
from remuda.wire.backends import BackendInstall, BackendInstallReply, BackendStop
from remuda.wire.codec import Message, decode
from remuda.wire.models import ModelsRunningReply, ModelStop, ModelStopReply, RunningModel
from remuda.wire.nodes import InstalledArtifact, Report, RunningReplica, Work
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.kinds_of_workers import OurWorker
from tests.sim.ops.workers import Handle, Held, Life
from tests.sim.serving.facts import Fact, Terms
from tests.sim.serving.world import ServingWorld
from tests.support.reports import stored

_FIRST_PORT = 50100
BACKEND = "llama-cpp"


@dataclass(slots=True, eq=False)
class Process:
    key: ReplicaKey
    instance: str
    address: str
    worker: "ServingWorker"
    boot: str
    model: str = ""  # In its memory.
    revision: str = ""  # Of that model.
    memory_bytes: int = 0
    in_vram: bool = False
    loaded_by: str = ""  # The frontend that is at it.
    stopping: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    def __str__(self) -> str:
        return f"{self.key}@{self.address}/{self.instance}"


@dataclass(frozen=True, slots=True)
class Memory:
    ram_bytes: int
    vram_bytes: int = 0


class ServingWorker(OurWorker):
    def __init__(
        self, world: ServingWorld, bus: SimulatedBus, node: NodeId, memory: Memory, labels: Mapping[str, str]
    ) -> None:
        super().__init__(world, bus, node)
        self.serving = world
        self.machine = str(node)  # Stays what it is, whatever its node is called.
        self.memory = memory
        self.own_labels = labels
        self.terms = Fact(Terms(labels=labels, vram_bytes=memory.vram_bytes))
        self.heard = Fact(value=True)  # As far as frontends know, whatever it does.
        self.processes: dict[ReplicaKey, Process] = {}
        self.disk[BACKEND] = Held("sha256:any")
        self._started = 0
        self._stored: tuple[Report, StoredReport] | None = None

    def handlers(self) -> dict[str, Handle]:
        return {
            "backend.install": self.install,
            "backend.cancel": self.cancel,
            "backend.stop": self.stop_unheard,
            "backend.list": self.list_installed,
            "model.stop": self.stop,
            "models.running": self.running,
        }

    @property
    def resources(self) -> Resources:
        memory, used_ram, used_vram = self.memory, self.used(in_vram=False), self.used(in_vram=True)
        return Resources(
            total_ram=memory.ram_bytes,
            available_ram=memory.ram_bytes - used_ram,
            total_vram=memory.vram_bytes,
            available_vram=memory.vram_bytes - used_vram,
        )

    def used(self, *, in_vram: bool) -> int:
        return sum(one.memory_bytes for one in self.processes.values() if one.in_vram is in_vram)

    @property
    def build(self) -> str:
        return f"cuda12-{BACKEND}" if self.memory.vram_bytes else f"cpu-{BACKEND}"

    @property
    def member(self) -> bool:
        return self.world.workers.get(self.node) is self

    def announce(self) -> None:
        if self.member:
            super().announce()

    def come_back_as(self, node: NodeId) -> None:
        """It was removed, and registers anew: what an admin had said of it is forgotten."""
        self.node, self.gone_for_good = node, False
        self.world.workers[node] = self
        self.terms.becomes(Terms(labels=self.own_labels, vram_bytes=self.memory.vram_bytes))
        if self.life is None:
            self.start()
        else:
            self.announce()

    # What it is told.

    async def install(self, payload: bytes) -> Message:
        request = decode(BackendInstall, payload)
        key = ReplicaKey(request.model_id, request.replica_index)
        with self.in_hand("install", request) as hand:
            async with self.lock(str(key)):
                if key not in self.processes:
                    if trouble := await self.take_time(hand):
                        return BackendInstallReply(error=trouble)
                    self.begin(key)
                return self.told_of(self.processes[key])
        return BackendInstallReply(error="the install was cancelled")

    def told_of(self, process: Process) -> BackendInstallReply:
        return BackendInstallReply(success=True, address=process.address, instance=process.instance)

    async def stop(self, payload: bytes) -> Message:
        request = decode(ModelStop, payload)
        process = self._named(request.process_key)
        if process is None:
            return ModelStopReply(terminated=True)
        if not self.means(request, process):
            return ModelStopReply(
                matched=True, address=process.address, error=f"mismatch: {process.key} is another now"
            )
        await self._stop(process)
        return ModelStopReply(matched=True, freed=True, terminated=True)

    def means(self, request: ModelStop, process: Process) -> bool:
        return request.instance in ("", process.instance) and (
            bool(request.instance) or request.expected_address == process.address
        )

    async def stop_unheard(self, payload: bytes) -> Message:
        process = self._named(decode(BackendStop, payload).backend)
        if process is not None:
            await self._stop(process)
        return ModelStopReply()

    async def running(self, payload: bytes) -> Message:
        await checkpoint()
        return self.what_runs()

    def what_runs(self) -> ModelsRunningReply:
        return ModelsRunningReply(
            models=tuple(
                RunningModel(
                    model_id=one.key.model,
                    replica_index=one.key.index,
                    address=self.recorded(one),
                    instance=self.told_of(one).instance,
                )
                for one in self.processes.values()
                if not one.stopping
            )
        )

    def recorded(self, process: Process) -> str:
        return process.address

    def _named(self, key: str) -> Process | None:
        return next((one for one in self.processes.values() if str(one.key) == key), None)

    async def _stop(self, process: Process) -> None:
        process.stopping = True
        await anyio.sleep(self.dice.between(0.1, 2.0))
        self.end(process)

    # Processes.

    def begin(self, key: ReplicaKey) -> None:
        assert self.life is not None, "it starts processes only while it lives"
        self._started += 1
        taken = {process.address for process in self.processes.values()}
        ports = range(_FIRST_PORT, _FIRST_PORT + len(taken) + 1)
        address = next(one for port in ports if (one := f"{self.machine}:{port}") not in taken)
        process = Process(key, f"{self.machine}-i{self._started}", address, self, self.life.boot)
        self.processes[key] = process
        self.world.trace.event("process", process)
        self.changed()

    def end(self, process: Process) -> None:
        if self.processes.get(process.key) is process:
            del self.processes[process.key]
            process.ended.set()
            self.world.trace.event("process ended", process)
            self.changed()

    def lose(self, process: Process, *, again: bool) -> None:
        """It crashes; whoever watches it starts it again, without its model."""
        self.end(process)
        if again and self.life is not None:
            self.begin(process.key)

    def crash(self) -> None:
        for process in list(self.processes.values()):
            self.end(process)
        super().crash()

    def stored_report(self) -> StoredReport:
        """As the store has it. Most repeat the one before under a new number."""
        report = self.report()
        told = report.model_copy(update={"sequence": 0})
        if self._stored is None or self._stored[0] != told:
            self._stored = (told, stored(report))
        return replace(self._stored[1], sequence=report.sequence)

    def report(self) -> Report:
        assert self.life is not None, "the dead tell nothing"
        return self._account(self.life)

    def _account(self, life: Life) -> Report:
        return Report(
            boot_id=life.boot,
            sequence=life.reports,
            installed=(InstalledArtifact(name=self.build, alias=BACKEND),),
            replicas=tuple(map(_told, self.processes.values())),
            work=tuple(Work(op_id=hand.op, attempt=hand.attempt, kind=hand.kind) for hand in life.hands),
            models_path="/models",
            model_files=self.serving.files,
        )

    # What admins say of its node.

    def on_terms(self, **changes: object) -> None:
        self.terms.becomes(replace(self.terms.now, **changes))  # type: ignore[arg-type]  # Fields of Terms.


class PeerWorker(ServingWorker):
    """It knows LocalAI's contract and nothing of ours: no reports, no instances, nothing to give up."""

    reports = False

    def handlers(self) -> dict[str, Handle]:
        known = super().handlers()
        del known["backend.cancel"]
        return known

    def lose(self, process: Process, *, again: bool) -> None:
        """It starts no process again by itself."""
        super().lose(process, again=False)

    def told_of(self, process: Process) -> BackendInstallReply:
        return BackendInstallReply(success=True, address=process.address)

    def means(self, request: ModelStop, process: Process) -> bool:
        return request.expected_address == self.recorded(process)

    def recorded(self, process: Process) -> str:
        """As it calls its processes itself."""
        return f"127.0.0.1:{process.address.rpartition(':')[2]}"


def _told(process: Process) -> RunningReplica:
    taken = process.memory_bytes if process.model else 0
    return RunningReplica(
        model_id=process.key.model,
        replica_index=process.key.index,
        backend=BACKEND,
        address=process.address,
        state="stopping" if process.stopping else "ready",
        instance=process.instance,
        ram_bytes=0 if process.in_vram else taken,
        vram_bytes=taken if process.in_vram else 0,
    )
