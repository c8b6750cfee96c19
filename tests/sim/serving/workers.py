"""Simulated workers with memory and processes, which start and end, crash, and come back empty."""

from dataclasses import dataclass, field

import anyio

from remuda.core.ids import NodeId
from remuda.fleet.model import Resources
from remuda.scheduler.model import ReplicaKey
from remuda.wire.backends import BackendInstall, BackendInstallReply
from remuda.wire.codec import Message, decode, encode
from remuda.wire.models import ModelStop, ModelStopReply
from remuda.wire.nodes import InstalledArtifact, ModelFile, Report, RunningReplica, Work
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.kinds_of_workers import OurWorker
from tests.sim.ops.workers import Handle, Life
from tests.sim.serving.world import ServingWorld

_FIRST_PORT = 50100


@dataclass(slots=True, eq=False)
class Process:
    key: ReplicaKey
    instance: str
    address: str
    worker: "ServingWorker"
    boot: str
    model: str = ""  # In its memory.
    memory_bytes: int = 0
    stopping: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    def __str__(self) -> str:
        return f"{self.key}@{self.address}/{self.instance}"


class ServingWorker(OurWorker):
    def __init__(self, world: ServingWorld, bus: SimulatedBus, node: NodeId, ram_bytes: int) -> None:
        super().__init__(world, bus, node)
        self.serving = world
        self.ram_bytes = ram_bytes
        self.processes: dict[ReplicaKey, Process] = {}
        self._started = 0

    def handlers(self) -> dict[str, Handle]:
        return {"backend.install": self.install, "backend.cancel": self.cancel, "model.stop": self.stop}

    @property
    def resources(self) -> Resources:
        used = sum(process.memory_bytes for process in self.processes.values())
        return Resources(total_ram=self.ram_bytes, available_ram=self.ram_bytes - used)

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
                process = self.processes[key]
                return BackendInstallReply(success=True, address=process.address, instance=process.instance)
        return BackendInstallReply(error="the install was cancelled")

    async def stop(self, payload: bytes) -> Message:
        request = decode(ModelStop, payload)
        process = next((one for key, one in self.processes.items() if str(key) == request.process_key), None)
        if process is None:
            return ModelStopReply(terminated=True)
        if process.instance != request.instance:
            return ModelStopReply(matched=True, error=f"instance mismatch: {process.key} is another now")
        process.stopping = True
        await anyio.sleep(self.dice.between(0.1, 2.0))
        self.end(process)
        return ModelStopReply(matched=True, freed=True, terminated=True)

    # Processes.

    def begin(self, key: ReplicaKey) -> None:
        assert self.life is not None, "it starts processes only while it lives"
        self._started += 1
        taken = {process.address for process in self.processes.values()}
        ports = range(_FIRST_PORT, _FIRST_PORT + len(taken) + 1)
        address = next(one for port in ports if (one := f"{self.node}:{port}") not in taken)
        process = Process(key, f"{self.node}-i{self._started}", address, self, self.life.boot)
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

    def account(self) -> str:
        assert self.life is not None, "the dead tell nothing"
        return self._account(self.life)

    def _account(self, life: Life) -> str:
        report = Report(
            boot_id=life.boot,
            sequence=life.reports,
            installed=(InstalledArtifact(name="cpu-llama-cpp", alias="llama-cpp"),),
            replicas=tuple(map(_told, self.processes.values())),
            work=tuple(Work(op_id=hand.op, attempt=hand.attempt, kind=hand.kind) for hand in life.hands),
            models_path="/models",
            model_files=tuple(
                ModelFile(path=f"{model}.gguf", size=size) for model, size in self.serving.sizes.items()
            ),
        )
        return encode(report).decode()


def _told(process: Process) -> RunningReplica:
    return RunningReplica(
        model_id=process.key.model,
        replica_index=process.key.index,
        backend="llama-cpp",
        address=process.address,
        state="stopping" if process.stopping else "ready",
        instance=process.instance,
    )
