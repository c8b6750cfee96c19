"""Workers that do as ours do, and workers that know LocalAI's contract and nothing of ours."""

import anyio
from anyio.lowlevel import checkpoint

from remuda.core.ids import NodeId
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendInstall,
    BackendInstallReply,
    BackendRollback,
    BackendRollbackReply,
    BackendUpgrade,
    BackendUpgradeReply,
    InstallProgress,
)
from remuda.wire.codec import Message, decode
from tests.sim.ops.bus import SimulatedBus
from tests.sim.ops.workers import Handle, Held, InHand, SimulatedWorker
from tests.sim.ops.world import World

_TOTAL = 1 << 30
_START_S = 0.5  # Until a process runs, or has ended.


class OurWorker(SimulatedWorker):
    def handlers(self) -> dict[str, Handle]:
        return {
            "backend.install": self.install,
            "backend.upgrade": self.upgrade,
            "backend.delete": self.delete,
            "backend.rollback": self.roll_back,
            "backend.cancel": self.cancel,
            "backend.list": self.list_installed,
        }

    async def install(self, payload: bytes) -> Message:
        request = decode(BackendInstall, payload)
        with self.in_hand("force" if request.force else "install", request) as hand:
            async with self.lock(hand.build):
                held = self.disk.get(hand.build)
                if held is None or request.force or request.digest not in ("", held.digest):
                    if trouble := await self.take_time(hand):
                        return BackendInstallReply(error=trouble, code="registry_failed")
                    self.put(hand, self._brought(request))
                return await self._start(hand)
        return BackendInstallReply(error="the install was cancelled", code="conflict")

    async def _start(self, hand: InHand) -> Message:
        hand.firm = True
        await anyio.sleep(_START_S)
        held = self.disk[hand.build]
        if held.digest in self.world.releases.broken:
            return BackendInstallReply(error="it ended with exit code 1", code="backend_failed")
        held.before = ""  # It has been seen running.
        self.done.add((hand.op, hand.attempt))
        return BackendInstallReply(success=True, digest=held.digest, address="127.0.0.1:50052")

    async def upgrade(self, payload: bytes) -> Message:
        request = decode(BackendUpgrade, payload)
        with self.in_hand("upgrade", request) as hand:
            async with self.lock(hand.build):
                if trouble := await self.take_time(hand):
                    return BackendUpgradeReply(error=trouble)
                self.put(hand, self._brought(request))
                self.done.add((hand.op, hand.attempt))
                return BackendUpgradeReply(success=True, digest=self.disk[hand.build].digest)
        return BackendUpgradeReply(error="the upgrade was cancelled")

    def _brought(self, request: BackendInstall | BackendUpgrade) -> str:
        if self.dice.chance(self.world.weather.other_bytes):
            self.world.trace.fault("other_bytes", self)
            return f"sha256:other-{self.dice.token(4)}"
        return request.digest or self.world.releases.newest[request.backend]

    async def roll_back(self, payload: bytes) -> Message:
        request = decode(BackendRollback, payload)
        with self.in_hand("rollback", request) as hand:
            hand.firm = True
            async with self.lock(hand.build):
                await anyio.sleep(self.dice.between(0.1, 3.0))
                held = self.disk.get(hand.build)
                if held is None:
                    return BackendRollbackReply(error=f"backend not found: {request.backend}")
                if request.from_digest and held.digest != request.from_digest:
                    return BackendRollbackReply(success=True)
                if not held.before:
                    return BackendRollbackReply(error="no earlier version is kept", code="not_found")
                self.disk[hand.build] = Held(held.before)
                self.changed_by[hand.build] = hand.op
                self.world.trace.event("back", self, hand.build, held.before, hand.op)
        return BackendRollbackReply(success=True)

    async def cancel(self, payload: bytes) -> Message:
        await checkpoint()
        request = decode(BackendCancel, payload)
        assert self.life is not None, "it hears only while it lives"
        meant = [hand for hand in self.life.hands if hand.op == request.op_id and not hand.firm]
        for hand in meant:
            hand.scope.cancel()
        return BackendCancelReply(success=True, cancelled=bool(meant))

    def tell_progress(self, hand: InHand, part: int, parts: int) -> None:
        self.publish_progress(
            InstallProgress(
                op_id=hand.op,
                node_id=self.node,
                backend=hand.build,
                phase="downloading" if part < parts else "extracting",
                seq=part,
                current_bytes=_TOTAL * part // parts,
                total_bytes=_TOTAL,
                overall=99.0 * part / parts,
            )
        )


class LocalAiWorker(SimulatedWorker):
    """No report, no sequence, no cancel, no way back, and whatever the tag stands for at that moment."""

    reports = False

    def __init__(self, world: World, bus: SimulatedBus, node: NodeId, *, knows_upgrade: bool) -> None:
        self._knows_upgrade = knows_upgrade
        super().__init__(world, bus, node)

    def handlers(self) -> dict[str, Handle]:
        known: dict[str, Handle] = {
            "backend.install": self.install,
            "backend.delete": self.delete,
            "backend.list": self.list_installed,
        }
        return {**known, "backend.upgrade": self.upgrade} if self._knows_upgrade else known

    def finds(self, name: str) -> bool:
        """Only by the name of its folder."""
        return name in self.disk

    async def install(self, payload: bytes) -> Message:
        request = decode(BackendInstall, payload)
        with self.in_hand("force" if request.force else "install", request) as hand:
            async with self.lock(hand.build):
                if request.force or hand.build not in self.disk:
                    if trouble := await self.take_time(hand):
                        return BackendInstallReply(error=trouble)
                    self.put(hand, self.world.releases.newest[request.backend])
                await anyio.sleep(_START_S)
                if self.disk[hand.build].digest in self.world.releases.broken:
                    return BackendInstallReply(error="it ended with exit code 1")
                self.done.add((hand.op, hand.attempt))
        return BackendInstallReply(success=True, address="127.0.0.1:50052")

    async def upgrade(self, payload: bytes) -> Message:
        request = decode(BackendUpgrade, payload)
        with self.in_hand("upgrade", request) as hand:
            async with self.lock(hand.build):
                if trouble := await self.take_time(hand):
                    return BackendUpgradeReply(error=trouble)
                self.put(hand, self.world.releases.newest[request.backend])
                self.done.add((hand.op, hand.attempt))
        return BackendUpgradeReply(success=True)

    def tell_progress(self, hand: InHand, part: int, parts: int) -> None:
        """Each layer begins at nothing, and unpacking is called downloading, too."""
        layer = f"Downloading {part}/{parts} sha256:abc"
        for done in (0.2, 0.9):
            self.publish_progress(
                InstallProgress(
                    op_id=hand.op,
                    node_id=self.node,
                    backend=hand.build,
                    file_name=layer if part < parts else "Extracting sha256:abc",
                    current=f"{done * 100:.1f} MiB",
                    total=f"{parts * 100:.1f} MiB",
                    percentage=done * 100,
                    phase="downloading",
                )
            )
