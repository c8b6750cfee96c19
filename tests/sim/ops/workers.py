"""Simulated workers: a disk that survives, lives that do not, and work that takes its time."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from remuda.core.ids import BootId, NodeId
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendDelete,
    BackendDeleteReply,
    BackendInstall,
    BackendListReply,
    BackendRollback,
    BackendUpgrade,
    InstalledBackend,
    InstallProgress,
)
from remuda.wire.codec import Message, decode, encode
from remuda.wire.nodes import InstalledArtifact, Report, Work
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.world import World
from tests.support.clocks import elapsed_s

Reply = Callable[[bytes], None]
Handle = Callable[[bytes], Awaitable[Message]]


def build_of(backend: str) -> str:
    """The name on the disk of what is asked for as `backend`, or by that very name."""
    return backend if backend.startswith("cpu-") else f"cpu-{backend}"


@dataclass(slots=True)
class Held:
    digest: str
    before: str = ""  # The version before, until this one has been seen running.


@dataclass(slots=True, eq=False)
class InHand:
    op: str
    attempt: int
    kind: str  # install, force, upgrade, delete or rollback.
    build: str
    begun_s: float
    firm: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(slots=True, eq=False)
class Life:
    boot: BootId
    began_s: float = field(default_factory=elapsed_s)
    tasks: TaskGroup | None = None
    hands: list[InHand] = field(default_factory=list)
    locks: dict[str, anyio.Lock] = field(default_factory=dict)
    reports: int = 0


class SimulatedWorker:
    """Subclasses say what it understands."""

    reports = True
    machine = "127.0.0.1"  # The host of its addresses.

    def __init__(self, world: World, bus: SimulatedBus, node: NodeId) -> None:
        self.world = world
        self.node = node
        self.name = f"name-of-{node}"
        self.dice = world.dice.fork(node)
        self.disk: dict[str, Held] = {}
        self.changed_by: dict[str, str] = {}  # Which operation changed the disk last, per build.
        self.put_as: dict[str, str] = {}  # What it says of when each build was installed; only compared.
        self._times_put = 0
        self.done: set[tuple[str, int]] = set()  # Attempts that did what they were asked.
        self.answered: set[tuple[str, int]] = set()  # Attempts that have come to some end.
        self.life: Life | None = None
        self.isolated = False
        self.gone_for_good = False
        self._bus = bus
        self._unheard = False
        self._lives = 0
        self._handlers: dict[str, Handle] = self.handlers()

    def handlers(self) -> dict[str, Handle]:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.node}{'' if self.reports else '(localai)'}"

    # Coming and going.

    @property
    def connected(self) -> bool:
        return self.life is not None and not self.isolated

    def start(self) -> None:
        assert self.life is None, "it runs already"
        self._lives += 1
        life = self.life = Life(BootId(f"{self.node}-boot-{self._lives}"))
        self.world.trace.event("started", self)
        self.world.tasks.start_soon(self._live, life)

    async def _live(self, life: Life) -> None:
        async with anyio.create_task_group() as life.tasks:
            self.announce()
            await anyio.sleep_forever()

    def crash(self) -> None:
        assert self.life is not None, "only the living die"
        if self.life.tasks is not None:
            self.life.tasks.cancel_scope.cancel()
        self.life.hands.clear()
        self.life = None

    def rejoin(self) -> None:
        self.isolated = False
        self.announce()

    def announce(self) -> None:
        if self.life is not None and self.connected:
            self.world.roster.register(self, self.life.boot)
            self.changed()

    # What it is told.

    def hears(self, verb: str) -> bool:
        return (
            self.connected
            and self.life is not None
            and self.life.tasks is not None
            and verb in self._handlers
        )

    def hear(self, verb: str, payload: bytes, reply: Reply) -> None:
        assert self.life is not None, "the caller has asked whether it hears"
        assert self.life.tasks is not None, "so it has"
        self.life.tasks.start_soon(self._deal_with, verb, payload, reply)

    async def _deal_with(self, verb: str, payload: bytes, reply: Reply) -> None:
        answer = await self._handlers[verb](payload)
        if self.connected:
            reply(encode(answer))

    @contextmanager
    def in_hand(
        self, kind: str, request: BackendInstall | BackendUpgrade | BackendDelete | BackendRollback
    ) -> Iterator[InHand]:
        """Given up by cancelling its scope, unless it is firm."""
        assert self.life is not None, "it works only while it lives"
        life, build = self.life, build_of(request.backend)
        hand = InHand(request.op_id, request.attempt, kind, build, elapsed_s())
        self.world.claims.begins(self, hand)
        life.hands.append(hand)
        self.changed()
        try:
            with hand.scope:
                yield hand
        finally:
            if hand in life.hands:
                life.hands.remove(hand)
                self.answered.add((hand.op, hand.attempt))
                self.changed()

    def lock(self, build: str) -> anyio.Lock:
        assert self.life is not None, "it works only while it lives"
        return self.life.locks.setdefault(build, anyio.Lock())

    async def take_time(self, hand: InHand) -> str:
        """The work itself, with progress; why it failed, or nothing."""
        weather = self.world.weather
        span_s = 1.0 * self.world.pace.work_most_s ** self.dice.fraction()
        fails = self.dice.chance(weather.work_fails)
        parts = self.dice.whole(1, 4)
        for part in range(1, parts + 1):
            await anyio.sleep(span_s / parts)
            if fails and part == parts:
                return self.dice.pick(("no space left on the disk", "the registry does not answer"))
            self.tell_progress(hand, part, parts)
        return ""

    def tell_progress(self, hand: InHand, part: int, parts: int) -> None:
        raise NotImplementedError

    def publish_progress(self, event: InstallProgress) -> None:
        if self.connected:
            subject = subjects.install_progress(self.node, event.op_id)
            self._bus.publish(subject, encode(event), heard_by=subjects.ALL_INSTALL_PROGRESS)

    def put(self, hand: InHand, digest: str) -> None:
        held = self.disk.get(hand.build)
        if held is None or held.digest != digest:
            self.disk[hand.build] = Held(digest, before=held.digest if held else "")
        self.changed_by[hand.build] = hand.op
        self._times_put += 1
        self.put_as[hand.build] = f"installation {self._times_put}"
        self.world.trace.event("on disk", self, hand.build, digest, hand.op)

    # Removing and listing are the same for all.

    async def delete(self, payload: bytes) -> Message:
        request = decode(BackendDelete, payload)
        with self.in_hand("delete", request) as hand:
            hand.firm = True
            async with self.lock(hand.build):
                await anyio.sleep(self.dice.between(0.1, 5.0))
                if self.world.weather.work_fails and self.dice.chance(self.world.weather.work_fails / 2):
                    return BackendDeleteReply(error="a process survived")
                if hand.build not in self.disk or not self.finds(request.backend):
                    return BackendDeleteReply(error=f"backend not found: {request.backend}")
                del self.disk[hand.build]
                self.changed_by[hand.build] = hand.op
                self.done.add((hand.op, hand.attempt))
                self.world.trace.event("off disk", self, hand.build, hand.op)
        return BackendDeleteReply(success=True)

    def finds(self, name: str) -> bool:
        return True

    async def list_installed(self, payload: bytes) -> Message:
        await checkpoint()
        rows = tuple(
            InstalledBackend(name=name, digest=held.digest, installed_at=self.put_as.get(name, ""))
            for name, held in self.disk.items()
        )
        return BackendListReply(backends=rows)

    # What it tells by itself.

    def changed(self) -> None:
        """Something is new: say so now, by a heartbeat that may be late, or lost."""
        life = self.life
        if life is None or not self.reports:
            return
        life.reports += 1
        if not self.connected or self._bus.befalls("lost", f"report of {self.node}"):
            self._unheard = True
            return
        self.world.tasks.start_soon(self._report, self._account(life))

    def say_what_is_unheard(self) -> None:
        if self._unheard:
            self._unheard = False
            self.changed()

    async def _report(self, report: Report) -> None:
        late = self._bus.befalls("late", f"report of {self.node}")
        usual_s = self.dice.between(0.5, 4.0) if late else 0.01
        await anyio.sleep(usual_s + self.world.slowness_s(self.node))
        if not self.connected or not self.world.roster.report(self.node, report):
            self._unheard = True

    def _account(self, life: Life) -> Report:
        installed = tuple(
            InstalledArtifact(name=name, digest=held.digest, alias=name.removeprefix("cpu-"))
            for name, held in self.disk.items()
        )
        work = tuple(Work(op_id=hand.op, attempt=hand.attempt, kind=hand.kind) for hand in life.hands)
        return Report(boot_id=life.boot, sequence=life.reports, installed=installed, work=work)
