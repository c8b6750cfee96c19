"""A frontend's way to the database: the real statements, behind a connection that can fail at either end."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from remuda.core import limits
from remuda.core.errors import StoreUnusable
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.admission import Beat, HeartbeatOutcome
from remuda.fleet.health import Fleet
from remuda.fleet.model import CommandProbe, Dial, HistoryEntry, Node
from remuda.fleet.ports import Note
from remuda.fleet.registration import Decision, Supersede
from remuda.store.connections import unusable
from remuda.store.fleet import Decide, KeysOf, NodeChange, SqlFleetStore, Succeed
from tests.sim.chance import Dice
from tests.sim.ledger import Write
from tests.sim.world import THRESHOLDS, World

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("this was not to wait for anything")


class StoreOfFrontend:
    """Implements fleet.ports.FleetStore."""

    def __init__(self, world: World, dice: Dice) -> None:
        self.cut = False
        self.undisturbed = False  # While a checker asks: nothing fails, and nothing takes time.
        self._world = world
        self._dice = dice
        self._sql = SqlFleetStore(world.store.database)

    async def register(self, name: str, decide: Decide) -> Decision:
        return await self._call(lambda: self._sql.register(name, decide), Write("register"))

    async def supersede(self, claim_id: NodeId, decide: Succeed, note: Note) -> Supersede:
        return await self._call(
            lambda: self._sql.supersede(claim_id, decide, note), Write("supersede", note, claim_id)
        )

    async def invite(self, name: str, nonce: str, note: Note) -> str:
        return await self._call(lambda: self._sql.invite(name, nonce, note), Write("invite", note))

    async def withdraw_invite(
        self, name: str, change: NodeChange, keys_of: KeysOf, note: Note
    ) -> Node | None:
        return await self._call(
            lambda: self._sql.withdraw_invite(name, change, keys_of, note), Write("withdraw_invite", note)
        )

    async def amend(self, node_id: NodeId, change: NodeChange, note: Note | None = None) -> Node:
        return await self._call(lambda: self._sql.amend(node_id, change, note), Write("amend", note, node_id))

    async def remove(self, node_id: NodeId, note: Note, revoke: Sequence[str] = ()) -> Node:
        return await self._call(
            lambda: self._sql.remove(node_id, note, revoke), Write("remove", note, node_id)
        )

    async def beat(self, beats: Sequence[Beat]) -> Sequence[HeartbeatOutcome]:
        return await self._call(lambda: self._sql.beat(beats), Write("beat"))

    async def fleet(self) -> Fleet:
        found = await self._call(self._sql.fleet)
        if not self.undisturbed:
            self._world.verdicts.look(found.standings(THRESHOLDS))
        return found

    async def one(self, node_id: NodeId) -> Fleet:
        return await self._call(lambda: self._sql.one(node_id))

    async def listen(self, frontend: FrontendId, *, resumed: bool) -> None:
        await self._call(lambda: self._sql.listen(frontend, resumed=resumed), Write("listen"))

    async def frontends(self) -> frozenset[FrontendId]:
        return await self._call(self._sql.frontends)

    async def record_dials(self, dials: Sequence[Dial]) -> None:
        raise NotImplementedError("nobody dials in a simulation")

    async def record_probes(self, probes: Sequence[CommandProbe]) -> None:
        raise NotImplementedError("nobody probes in a simulation")

    async def note_outages(self, notes: Sequence[tuple[NodeId, Note]]) -> None:
        await self._sql.note_outages(notes)  # Nothing depends on when it arrives.

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        return await self._call(lambda: self._sql.history(node_name, limit))

    async def revoked(self) -> dict[str, datetime]:
        return await self._call(self._sql.revoked)

    async def _call(self, work: Callable[[], Awaitable[T]], write: Write | None = None) -> T:
        if self.undisturbed:
            return await work()
        await self._travel()
        result = await work()  # Inline: nobody else runs before it is committed.
        if write is not None:
            self._world.trace.event("wrote", write)
            self._world.changes.after(write)
        if self._dice.chance(self._world.weather.store_answer_lost):
            self._world.trace.fault("store_answer_lost", write or "read")
            raise self._trouble()
        await checkpoint()  # Whoever dies here dies with the change made and nobody told.
        return result

    async def _travel(self) -> None:
        host = self._world.store
        if not (self.cut or host.away):
            await anyio.sleep(min(self._dice.between(0.0005, 0.004) * host.slowness, limits.STORE_CALL_S))
        if self.cut or host.away:
            await anyio.sleep(self._dice.pick((0.01, 1.0, limits.STORE_CALL_S)))
            raise self._trouble()

    def _trouble(self) -> StoreUnusable:
        return unusable("in memory", "it cannot be reached")
