"""Frontends in one process: a bus between them, a store they share, and clocks that a test turns."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from remuda.core.clock import SystemClock
from remuda.core.errors import StoreUnusable
from remuda.core.ids import ReplicaKey
from remuda.fleet.health import Standing
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import Manifest
from remuda.scheduler.model import Replica, Replicas, SeenFacts, StoredModel
from tests.support.nodes import NOON


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.passed_s = 1000.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s


class SharedStore:
    """Replicas, models and nodes, with a count of how often each was read."""

    def __init__(self) -> None:
        self.down = False
        self.rows: tuple[Replica, ...] = ()
        self.change = 0
        self.nodes: tuple[ObservedNode, ...] = ()
        self.models_by_name: dict[str, StoredModel] = {}
        self.reads: defaultdict[str, int] = defaultdict(int)
        self.touched: list[Mapping[ReplicaKey, timedelta]] = []

    def put(self, *rows: Replica) -> None:
        self.change += 1
        self.rows = tuple(replace(row, change=self.change) for row in rows)

    async def replicas(self) -> Replicas:
        self._read("replicas")
        return Replicas(NOON, self.change, self.rows)

    async def latest_change(self) -> int:
        self._read("latest_change")
        return self.change

    async def standings(self) -> Sequence[Standing]:
        self._read("standings")
        return [view.standing for view in self.nodes]

    async def touch(self, used: Mapping[ReplicaKey, timedelta]) -> None:
        self._read("touch")
        self.touched.append(used)

    async def models(self) -> Sequence[StoredModel]:
        self._read("models")
        return list(self.models_by_name.values())

    async def put_model(self, model: StoredModel) -> StoredModel:
        self.models_by_name[model.name] = model
        return model

    async def put_new(self, model: StoredModel) -> StoredModel | None:
        return None if model.name in self.models_by_name else await self.put_model(model)

    async def describe_model(self, model: StoredModel, manifest: Manifest) -> bool:
        return False

    async def remove_model(self, name: str) -> StoredModel:
        return self.models_by_name.pop(name)

    async def note_seen(self, model: StoredModel, seen: SeenFacts) -> None:
        self.models_by_name[model.name] = replace(model, seen=seen)

    def _read(self, what: str) -> None:
        self.reads[what] += 1
        if self.down:
            raise StoreUnusable("the database cannot be used")
