"""Placing and demand as a frontend has them, on the rig's stores."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import TaskGroup

from remuda.core.ids import MachineId, NodeId, ReplicaKey
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.ops.model import OpId, UnloadCause, UnloadReason
from remuda.ops.progress import LiveProgress
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.demand import NO_NODE, Demand
from remuda.scheduler.eviction import FIRST, Turn
from remuda.scheduler.model import Replica, Unplaceable
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.scheduler.replica_placer import PlacementInputs, ReplicaPlacer
from remuda.scheduler.unloader import UnloadRequests
from tests.support.virtual_ops import time_passes
from tests.unit.scheduler.rig import GB, Rig


class PlacingRig(Rig):
    """Every node has the backend and qwen.gguf, of 4 GB."""

    def __init__(self, models_path: Path = Path("/models")) -> None:
        super().__init__(models_path)
        self.busy: dict[ReplicaKey, int] = {}
        self.here: Collection[MachineId] = ()
        self.readings: Sequence[Reading] = ()
        self.shared = False
        self.checks_disk = True
        for machine in self.machines:
            machine.files = {"qwen.gguf": 4 * GB}

    async def look(self) -> tuple[Sequence[ObservedNode], Sequence[Reading]]:
        return await self.nodes(), self.readings

    @property
    def unloads(self) -> UnloadRequests:
        return UnloadRequests(self.operations, self.standings, self.clock, self.entropy, self)

    async def unload(self, replica: Replica) -> None:
        """As people do."""
        await self.unloads.ask(replica, "ada", UnloadReason(UnloadCause.ASKED, by="ada"))

    def placing(self) -> ReplicaPlacer:
        by = PlacementInputs(
            self.look, lambda key: self.busy.get(key, 0), self.here, self.shared, self.checks_disk
        )
        return ReplicaPlacer(
            self.replicas,
            self.catalogue,
            by,
            self.unloads,
            clock=self.clock,
            entropy=self.entropy,
            table=self,
            signal=self,
        )

    def model(self, name: str = "qwen") -> Catalogued:
        found = self.catalogue.find(name)
        assert found is not None
        return found


class CountingPlacer:
    """Counts how often a place is looked for, which takes a moment."""

    def __init__(self, placing: ReplicaPlacer) -> None:
        self.asked: list[str] = []
        self.turns: list[Turn] = []
        self.wishes: list[NodeWishes] = []
        self._placing = placing

    async def begin(
        self,
        model: Catalogued,
        by: str,
        avoid: Mapping[NodeId, str] = NO_NODE,
        *,
        turn: Turn = FIRST,
        wishes: NodeWishes = NO_WISHES,
    ) -> Replica | Unplaceable | None:
        self.asked.append(model.config.id)
        self.turns.append(turn)
        self.wishes.append(wishes)
        await time_passes(0.2)
        return await self._placing.begin(model, by, avoid, turn=turn, wishes=wishes)


class DemandRig(PlacingRig):
    """`with_route` are the models that have a route, as this frontend's table has it. Made and run by
    `running`."""

    demand: Demand

    def __init__(self, tasks: TaskGroup) -> None:
        super().__init__()
        self.out_of_reach: dict[NodeId, str] = {}
        self.live: LiveProgress | None = None
        self._tasks = tasks
        self.with_route: set[str] = set()
        self.after_refresh: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
        self.refreshed = 0
        self.placer = CountingPlacer(self.placing())

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        """With `qwen` configured."""
        async with anyio.create_task_group() as tasks:
            made = cls(tasks)
            made.demand = await made.of_a_frontend()
            await made.configure()
            yield made
            tasks.cancel_scope.cancel()

    async def of_a_frontend(self) -> Demand:
        """Of a further one, too; it runs."""
        made = Demand(
            self.replicas,
            self.operations,
            self.catalogue,
            self.placer,
            self.clock,
            table=self,
            out_of_reach=self,
            progress=self,
        )
        await self._tasks.start(made.run)
        return made

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return self.live

    def nodes_out_of_reach(self) -> Mapping[NodeId, str]:
        return self.out_of_reach

    def routable(self, model: str) -> bool:
        return model in self.with_route

    async def refresh(self) -> None:
        self.refreshed += 1
        await self.after_refresh()
