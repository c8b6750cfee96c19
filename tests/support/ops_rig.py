"""Frontends that work on operations, and workers that do as a test says, over any bus and any database."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio

from remuda.bus.client import Bus
from remuda.bus.messages import Connected, Incoming
from remuda.core.clock import Clock
from remuda.core.entropy import SeededEntropy
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.admission import admit, readmit
from remuda.fleet.health import Standing
from remuda.fleet.ports import KnownName
from remuda.fleet.registration import Admit
from remuda.ops.broadcast import ChangeSignal
from remuda.ops.commander import BusCommander, Timeouts
from remuda.ops.inventories import Inventories
from remuda.ops.model import Goal, Kind, Operation, OpId, RollOut, Source, Step, StepPolicy
from remuda.ops.ports import FrontendWork, ModelWork, PatientBusPort, TapPort
from remuda.ops.progress_board import ProgressBoard, ProgressSubscription
from remuda.ops.reconciler import Pace, Reconciler
from remuda.store.database import Database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops import SqlOpStore
from remuda.wire import subjects
from remuda.wire.backends import BackendInstallReply, BackendListReply, InstalledBackend, InstallProgress
from remuda.wire.codec import Message, encode
from remuda.wire.nodes import InstalledArtifact, Report, Work
from tests.support.nodes import OPEN, THRESHOLDS, beat, candidate
from tests.support.reports import stored

BACKEND = "llama-cpp"
BUILD = "cpu-llama-cpp"
DONE = BackendInstallReply(success=True, address="127.0.0.1:50052")
AS_SHIPPED = Pace()
MakeFrontendWork = Callable[[SqlOpStore, ProgressBoard], FrontendWork]
QUICK = StepPolicy(backoff_first=timedelta(milliseconds=50), backoff_most=timedelta(milliseconds=200))


@dataclass(frozen=True, slots=True)
class OpsFrontend:
    store: SqlOpStore
    reconciler: Reconciler
    commander: BusCommander
    board: ProgressBoard
    progress: ProgressSubscription
    inventories: Inventories
    signal: ChangeSignal

    async def submit(
        self, nodes: Sequence[NodeId], kind: Kind = Kind.INSTALL, op: str = "op-1", **more: Any
    ) -> OpId:
        live = await self.store.live()
        source = more.pop("source", Source(BACKEND, galleries="[]"))
        goal = Goal((BUILD, BACKEND), more.pop("digest", ""))
        roll_out = more.pop("roll_out", RollOut(at_once=1000))
        operation = Operation(OpId(op), kind, source, roll_out, "admin", live.now)
        steps = [Step(OpId(op), node, f"name-{node}", kind, source, goal, **more) for node in nodes]
        await self.store.submit(operation, steps)
        self.signal.notify()
        return OpId(op)

    async def steps(self, op: str = "op-1") -> Sequence[Step]:
        return (await self.store.view(OpId(op))).steps

    async def step(self, op: str = "op-1") -> Step:
        return (await self.steps(op))[0]


@asynccontextmanager
async def ops_frontend(
    bus: Bus,
    database: Database,
    clock: Clock,
    *,
    name: str = "frontend-1",
    lines: PatientBusPort | None = None,
    taps: TapPort | None = None,
    timeouts: Timeouts | None = None,
    policy: StepPolicy = QUICK,
    pace: Pace = AS_SHIPPED,
    at_once_max: int = 1000,
    list_every: timedelta = timedelta(seconds=30),
    reconciles: bool = True,
    model_work: ModelWork | None = None,
    frontend_work: "MakeFrontendWork | None" = None,
) -> AsyncIterator[OpsFrontend]:
    """At work while the block lasts."""
    lines, timeouts, store = lines or bus, timeouts or Timeouts(), SqlOpStore(database)
    trouble = partial(_trouble, bus)
    signal, board = ChangeSignal(lines, FrontendId(name)), ProgressBoard(store, clock)
    progress = ProgressSubscription(taps or bus, board.take)
    commander = BusCommander(
        lines,
        store,
        board,
        progress,
        clock,
        timeouts=timeouts,
        at_once_max=at_once_max,
        bus_trouble=trouble,
        signal=signal,
        model_work=model_work,
        frontend_work=None if frontend_work is None else frontend_work(store, board),
        own_at_once_max=3,
    )
    inventories = Inventories(lines, store, clock, signal, list_every)
    reconciler = Reconciler(
        store,
        partial(_standings, SqlFleetStore(database)),
        commander,
        inventories,
        signal,
        frontend=FrontendId(name),
        clock=clock,
        entropy=SeededEntropy(7),
        timeouts=timeouts,
        policy=policy,
        pace=pace,
        bus_trouble=trouble,
    )
    async with anyio.create_task_group() as tasks:
        for runner in (signal.run, board.run, commander.run, inventories.run):
            await tasks.start(runner)
        if reconciles:
            await tasks.start(reconciler.run)
        yield OpsFrontend(store, reconciler, commander, board, progress, inventories, signal)
        tasks.cancel_scope.cancel()


async def _standings(fleet: SqlFleetStore) -> Sequence[Standing]:
    return (await fleet.fleet()).standings(THRESHOLDS)


def _trouble(bus: Bus) -> str:
    return "" if isinstance(bus.state, Connected) else "the bus is down"


Answer = Callable[[bytes], Awaitable[Message | None]]


async def done(payload: bytes) -> Message:
    return DONE


@dataclass(slots=True)
class ScriptedWorker:
    """One node. What it answers is the test's choice; what it hears is kept."""

    bus: Bus
    database: Database
    node: NodeId
    reports: bool
    boot: int = 1
    sequence: int = 0
    heard: list[tuple[str, bytes]] = field(default_factory=list)
    installed: list[str] = field(default_factory=list)

    def times(self, verb: str) -> int:
        return sum(heard == verb for heard, _ in self.heard)

    async def register(self) -> None:
        version = "0.1.0" if self.reports else ""
        boot_id = BootId(f"{self.node}-boot-{self.boot}")
        name = f"name-{self.node}"
        who = candidate(name=name, boot_id=boot_id, version=version, machine_id=f"machine-{self.node}")

        def decide(known: KnownName) -> Admit:
            if known.node is None:
                return Admit(admit(who, known.fleet.now, self.node, OPEN))
            return Admit(readmit(who, known.node, known.fleet.now, OPEN))

        await SqlFleetStore(self.database).register(name, decide)

    async def restart(self) -> None:
        """A new life: whatever it had in hand is gone."""
        self.boot += 1
        await self.register()
        if self.reports:
            await self.report()

    async def report(self, work: Sequence[Work] = ()) -> None:
        self.sequence += 1
        boot = BootId(f"{self.node}-boot-{self.boot}")
        installed = tuple(InstalledArtifact(name=name) for name in self.installed)
        body = Report(boot_id=boot, sequence=self.sequence, installed=installed, work=tuple(work))
        await SqlFleetStore(self.database).beat([beat(self.node, report=stored(body))])

    async def on(self, verb: str, answer: Answer) -> None:
        """Handle `nodes.<id>.<verb>`, any number at once. None: no reply."""

        async def handle(message: Incoming) -> None:
            self.heard.append((verb, message.payload))
            reply = await answer(message.payload)
            if reply is not None and message.respond is not None:
                await message.respond(encode(reply))

        subject = subjects.node_all(self.node).removesuffix(">") + verb
        await self.bus.subscribe(subject, handle, concurrent=True)

    async def list_installed(self, payload: bytes) -> Message:
        return BackendListReply(backends=tuple(InstalledBackend(name=name) for name in self.installed))

    async def tell(self, op: str, **event: Any) -> None:
        progress = InstallProgress(op_id=op, node_id=self.node, backend=BACKEND, **event)
        await self.bus.publish(subjects.install_progress(self.node, op), encode(progress))


async def worker(bus: Bus, database: Database, node: str = "node-1", *, reports: bool) -> ScriptedWorker:
    """A node that is registered, and listens to nothing yet."""
    made = ScriptedWorker(bus, database, NodeId(node), reports)
    await made.register()
    if reports:
        await made.report()
    return made


def patient(**changes: Any) -> StepPolicy:
    return replace(QUICK, **changes)
