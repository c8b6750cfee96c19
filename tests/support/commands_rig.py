"""Commands on a real depot with real galleries in files, and processes that a test decides upon."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel

from remuda.core.clock import Clock, SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import StartFailed
from remuda.core.ids import NodeId
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery, MachineProfile, Reading, galleries_to_json
from remuda.gallery.sources import Cache, Sources
from remuda.oci.client import open_client
from remuda.oci.model import Platform
from remuda.wire import subjects
from remuda.wire.backends import BackendInstall, BackendInstallReply, InstallProgress
from remuda.wire.codec import Message, decode, encode
from remuda.wire.nodes import Report
from remuda.wire.process_keys import ProcessKey
from remuda.worker.addresses import Advertised
from remuda.worker.commands.dispatch import Commands
from remuda.worker.depot.depot import Depot, Installed, Switching
from remuda.worker.depot.fetch_unpack import OnStep, ignore_steps
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.processes.model import Launch, ProcessPhase, ProcessStatus, Protocol, Recipe, Stopped
from remuda.worker.processes.ports import Supervision

R = TypeVar("R", bound=Message)

NODE = NodeId("n1")
LINUX = Platform("linux", "amd64")
REACHED_AT = Advertised("gpu-1.example:50051", "gpu-1.example:50050")
RUN = "#!/bin/sh\nexec true\n"


class ScriptedSupervision:
    """A supervisor whose processes are entries in a table; implements Supervision."""

    def __init__(self) -> None:
        self.table: dict[ProcessKey, ProcessStatus] = {}
        self.started: list[Launch] = []
        self.stopped: list[tuple[ProcessKey, bool]] = []  # With whether it was asked to free its memory.
        self.freed: list[ProcessKey] = []
        self.fails = ""  # Why no process becomes ready.
        self.immortal: set[ProcessKey] = set()
        self.just_ended: set[ProcessKey] = set()  # They are believed ready until somebody looks.
        self.readiness: anyio.Event | None = None  # What processes wait for before they are ready.
        self.before_stop: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self.free_trouble = ""
        self._ports = count(50052)

    def put(self, replica: ProcessStatus) -> None:
        self.table[replica.key] = replica

    def replicas(self) -> Sequence[ProcessStatus]:
        return [self.table[key] for key in sorted(self.table)]

    def usable(self, key: ProcessKey, name: str) -> ProcessStatus | None:
        replica = self.table.get(key)
        if replica is None or replica.phase is not ProcessPhase.READY or name not in replica.names:
            return None
        return replica

    async def confirm(self, key: ProcessKey) -> None:
        if key in self.just_ended:
            self.table[key] = replace(self.table[key], phase=ProcessPhase.WAITING)

    def named(self, text: str) -> Sequence[ProcessKey]:
        exact = ProcessKey.parse(text)
        of_model = {key for key in self.table if key.model_id == text}
        of_backend = {key for key, replica in self.table.items() if text in replica.names}
        return sorted(of_backend | ({exact} if exact in self.table else of_model))

    async def start(self, launch: Launch) -> ProcessStatus:
        self.started.append(launch)
        if self.readiness is not None:
            await self.readiness.wait()
        if self.fails:
            raise StartFailed(self.fails)
        port = next(self._ports)
        replica = ProcessStatus(
            launch.key,
            launch.backend,
            launch.names,
            launch.folder,
            launch.recipe.protocol,
            ProcessPhase.READY,
            instance=f"instance-{port}",
            pid=port,
            port=port,
        )
        self.put(replica)
        return replica

    async def stop(self, keys: Sequence[ProcessKey], *, free: bool) -> Sequence[Stopped]:
        await self.before_stop()
        outcomes = []
        for key in keys:
            if key not in self.table:
                continue
            gone = key not in self.immortal
            self.stopped.append((key, free))
            replica = self.table.pop(key) if gone else self.table[key]
            asked = free and replica.protocol is Protocol.GRPC
            not_freed = self.free_trouble if asked else ""
            trouble = "" if gone else "it does not end"
            freed = asked and not not_freed
            outcomes.append(Stopped(key, replica.port, freed, gone, trouble, not_freed))
        return outcomes

    async def free(self, key: ProcessKey) -> str:
        self.freed.append(key)
        return self.free_trouble


class CountingSources(Sources):
    """Galleries that count how often they are asked, and wait for a gate where a test has put one."""

    asked = 0
    refreshed = 0  # How often even a fresh copy was not enough.
    gate: anyio.Event | None = None

    async def read(self, *, refresh: bool = False) -> tuple[Reading, ...]:
        self.asked += 1
        self.refreshed += refresh
        if self.gate is not None:
            await self.gate.wait()
        return await super().read(refresh=refresh)


class GatedDepot(Depot):
    """Installs of a name wait for its gate, where a test has put one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.gates: dict[str, anyio.Event] = {}
        self.reached: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.installs: list[InstallSpec] = []

    async def install(
        self,
        spec: InstallSpec,
        *,
        refresh: bool = False,
        on_step: OnStep = ignore_steps,
        switching: Switching = nullcontext,
    ) -> Installed:
        self.installs.append(spec)
        self.reached[spec.name].set()
        if spec.name in self.gates:
            await self.gates[spec.name].wait()
        return await super().install(spec, refresh=refresh, on_step=on_step, switching=switching)


@dataclass
class Asked:
    payload: bytes
    replies: list[bytes] = field(default_factory=list)

    async def respond(self, reply: bytes) -> None:
        self.replies.append(reply)


class Rig:
    def __init__(
        self,
        root: Path,
        depot: GatedDepot,
        open_galleries: Callable[..., CountingSources],
        supervision: Supervision | None,
    ) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.depot = depot
        self.supervision = ScriptedSupervision()
        self.published: list[tuple[str, InstallProgress]] = []
        self.changes = 0
        self.delivered: list[Report] = []
        self.on_change: Callable[[], None] = lambda: None
        self.opened: list[tuple[Gallery, ...]] = []
        self.own_galleries = open_galleries((self.gallery("own", {}),))
        self._open_galleries = open_galleries
        self.http_backends: set[str] = set()
        self.needs_model: set[str] = set()  # Those of them that start nothing without one.
        self.recipes_asked: list[BackendInstall] = []
        self.commands = Commands(
            depot,
            supervision or self.supervision,
            galleries=self.own_galleries,
            open_galleries=self._open_given,
            machine=self._machine,
            recipe_for=self._recipe_for,
            reached_at=lambda: REACHED_AT,
            models=root / "models",
            changed=self._changed,
            deliver=self._deliver,
        )

    # What there is.

    def source(self, name: str, run: str | None = RUN) -> Path:
        """A folder that a backend can be installed from."""
        folder = self.root / "sources" / name
        folder.mkdir(parents=True, exist_ok=True)
        if run is not None:
            (folder / "run.sh").write_text(run)
        return folder

    def gallery(self, name: str, uris: dict[str, Path | str]) -> Gallery:
        """A gallery with these backends; an existing one of the name is replaced."""
        index = self.root / f"{name}.yaml"
        index.write_text("".join(f"- name: {entry}\n  uri: {uri}\n" for entry, uri in uris.items()) or "[]\n")
        return Gallery(name=name, url=f"file://{index}")

    def offer(self, *names: str) -> None:
        """Backends in the machine's own gallery."""
        self.gallery("own", {name: f"file://{self.source(name)}" for name in names})

    def galleries_of(self, **uris: Path | str) -> str:
        return galleries_to_json((self.gallery("given", dict(uris)),))

    def folder(self, name: str) -> Path:
        return self.depot.places.installed(name)

    def queued(self, name: str) -> int:
        """How many wait until they have the backend of this name to themselves."""
        lock = self.commands._access.locks._locks.get(name)
        return 0 if lock is None else lock.statistics().tasks_waiting

    def live(self, key: str, backend: str, **changes: object) -> ProcessStatus:
        """A process that runs."""
        parsed = ProcessKey.parse(key)
        assert parsed is not None, "a test names a key"
        port = 51000 + len(self.supervision.table)
        replica = ProcessStatus(
            parsed, backend, frozenset({backend}), self.folder(backend), Protocol.GRPC, ProcessPhase.READY
        )
        replica = replace(replica, instance=f"instance-{port}", pid=port, port=port, **changes)  # type: ignore[arg-type]
        self.supervision.put(replica)
        return replica

    # What is said.

    async def say(self, subject: Callable[[NodeId], str], payload: bytes) -> list[bytes]:
        asked = Asked(payload)
        await self.hear(subject, asked)
        return asked.replies

    async def hear(self, subject: Callable[[NodeId], str], asked: Asked) -> None:
        await self.commands.handlers(NODE, self._publish)[subject(NODE)](asked)

    async def ask(self, subject: Callable[[NodeId], str], request: Message, reply: type[R]) -> R:
        [answer] = await self.say(subject, encode(request))
        return decode(reply, answer)

    async def install(self, request: BackendInstall) -> BackendInstallReply:
        return await self.ask(subjects.backend_install, request, BackendInstallReply)

    def progress(self, op_id: str) -> list[InstallProgress]:
        return [event for _, event in self.published if event.op_id == op_id]

    async def _publish(self, subject: str, payload: bytes) -> None:
        self.published.append((subject, decode(InstallProgress, payload)))

    # What commands are given.

    async def _deliver(self) -> None:
        self.delivered.append(self.commands.report())

    def _changed(self) -> None:
        self.changes += 1
        self.on_change()

    async def _machine(self) -> MachineProfile:
        return MachineProfile("linux", "amd64", "default")

    def _open_given(self, galleries: tuple[Gallery, ...]) -> Sources:
        self.opened.append(galleries)
        return self._open_galleries(galleries)

    def _recipe_for(self, run_file: Path, request: BackendInstall) -> Recipe | None:
        self.recipes_asked.append(request)
        if request.backend in self.needs_model and not request.model_id:
            return None
        protocol = Protocol.HTTP if request.backend in self.http_backends else Protocol.GRPC
        return Recipe((str(run_file), "--addr", "0.0.0.0:{port}"), run_file.parent, {}, protocol)


@asynccontextmanager
async def rigged(root: Path, supervision: Supervision | None = None) -> AsyncIterator[Rig]:
    """Commands at work, with scripted processes unless others are given."""
    clock = SystemClock()
    async with open_client(clock, SeededEntropy(1)) as client:
        depot = GatedDepot(places_in(root), clock, client, LINUX)
        async with commanded(root, depot, clock, supervision) as rig:
            yield rig


@asynccontextmanager
async def commanded(
    root: Path, depot: GatedDepot, clock: Clock, supervision: Supervision | None
) -> AsyncIterator[Rig]:
    """Commands at work on this depot. When the block ends nothing may be left locked or listed."""
    async with open_fetcher() as fetcher, anyio.create_task_group() as tasks:

        def open_galleries(galleries: tuple[Gallery, ...]) -> CountingSources:
            return CountingSources(galleries, fetcher=fetcher, cache=Cache(root / "cache"), clock=clock)

        rig = Rig(root, depot, open_galleries, supervision)
        await tasks.start(rig.commands.run)
        yield rig
        assert rig.commands.idle, "a lock or an attempt was left behind"
        tasks.cancel_scope.cancel()


def places_in(root: Path) -> DepotLayout:
    return DepotLayout(root / "backends", root / "system", root / "blobs")
