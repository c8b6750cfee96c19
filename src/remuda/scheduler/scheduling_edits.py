"""What admins declare of models' replicas, and how each model is scheduled by it."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound
from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import replicas_problem
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.ports import ReplicaRows, RoutingTable
from remuda.scheduler.replica_goals import counting, why_not_there
from remuda.scheduler.scheduling import (
    ROUTE_POLICIES,
    Cooldown,
    ModelScheduling,
    SchedulingStore,
    SchedulingTerms,
    cooldown_in_words,
)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A configured model by the configuration that counts, and how it stands."""

    model: Catalogued
    loaded: int  # That count: see replica_goals.
    on_their_way: int
    waiting: str = ""  # Why there are fewer than wanted.
    not_counted: tuple[str, ...] = ()  # Where others are loaded, and why they do not count.


class SchedulingEdits:
    """`table` is read again before an answer, so that a caller finds in it what the answer says."""

    def __init__(
        self,
        store: SchedulingStore,
        catalogue: ModelCatalogue,
        replicas: ReplicaRows,
        clock: Clock,
        *,
        table: RoutingTable,
        nodes: Callable[[], Awaitable[Sequence[ObservedNode]]],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._replicas = replicas
        self._clock = clock
        self._table = table
        self._nodes = nodes

    async def stored(self) -> Sequence[ModelScheduling]:
        return await self._store.scheduling()

    async def one(self, model: str) -> ModelScheduling:
        found = next((one for one in await self._store.scheduling() if one.model == model), None)
        if found is None:
            raise NotFound(f"nothing is declared for the replicas of {model!r}")
        return found

    async def declare(
        self, model: str, change: Callable[[SchedulingTerms], SchedulingTerms]
    ) -> ModelScheduling:
        """`change` only computes, from what is stored. Invalid, naming the field, for what cannot be."""
        model = self._meant(model)
        known = {one.model: one.terms for one in await self._store.scheduling()}
        terms = change(known.get(model, SchedulingTerms()))
        check_terms(terms)
        put = await self._store.put_scheduling(model, terms)
        await self._changed()
        return put

    async def declare_new(self, model: str, terms: SchedulingTerms) -> bool:
        """Only if nothing is declared for it. False: something is, which stays."""
        await self._catalogue.refresh()
        model = self._meant(model)
        if any(one.model == model for one in await self._store.scheduling()):
            return False
        await self._store.put_scheduling(model, terms)
        await self._changed()
        return True

    async def withdraw(self, model: str) -> None:
        """What its YAML says counts again. NotFound when nothing was declared."""
        if not await self._store.remove_scheduling(model):
            raise NotFound(f"nothing is declared for the replicas of {model!r}")
        await self._changed()

    async def unconfigured(self) -> Sequence[ModelScheduling]:
        """What is declared for models that are not there, or not yet."""
        await self._catalogue.refresh()
        known = self._catalogue.configured
        return [one for one in await self._store.scheduling() if one.model not in known]

    async def scheduled(self, model: str = "") -> Sequence[Scheduled]:
        """Every configured model, or this one. NotFound for an unknown one for which nothing is declared."""
        await self._catalogue.refresh()
        known = self._catalogue.configured
        if model and model not in known:
            if any(one.model == model for one in await self._store.scheduling()):
                return ()
            raise NotFound(f"there is no model {model!r}")
        model = self._meant(model)
        rows = (await self._replicas.replicas()).rows
        nodes = {view.standing.node.id: view for view in await self._nodes()}
        cooldowns = await self._store.cooldowns()
        of_model = defaultdict[str, list[Replica]](list)
        for row in rows:
            of_model[row.key.model].append(row)
        return [
            _scheduled(one, of_model[name], nodes, self._waiting(cooldowns.get(name)))
            for name, one in sorted(known.items())
            if model in ("", name) and not one.config.alias
        ]

    def _meant(self, model: str) -> str:
        """An alias has no replicas of its own."""
        known = self._catalogue.configured.get(model)
        return model if known is None else known.config.alias or model

    def _waiting(self, cooldown: Cooldown | None) -> str:
        return "" if cooldown is None else cooldown_in_words(cooldown, self._clock.now())

    async def _changed(self) -> None:
        self._table.rows_changed()
        await self._table.refresh()


def _scheduled(
    one: Catalogued, rows: Sequence[Replica], nodes: Mapping[NodeId, ObservedNode], waiting: str
) -> Scheduled:
    counted = counting(rows, one.config, nodes)
    loaded = sum(row.state is ReplicaState.LOADED for row in counted)
    others = [
        f"{_name(row.node, nodes)}: {_why_not(row, one, nodes)}"
        for row in rows
        if row.state is ReplicaState.LOADED and row not in counted
    ]
    return Scheduled(one, loaded, len(counted) - loaded, waiting, tuple(sorted(others)))


def _name(node: NodeId, nodes: Mapping[NodeId, ObservedNode]) -> str:
    view = nodes.get(node)
    return node if view is None else view.standing.node.name


def _why_not(row: Replica, one: Catalogued, nodes: Mapping[NodeId, ObservedNode]) -> str:
    older = "of an older configuration"
    return (
        older if row.revision != one.config.revision else why_not_there(row, one.config, nodes.get(row.node))
    )


def check_terms(terms: SchedulingTerms) -> None:
    if problem := replicas_problem(terms.min_replicas, terms.max_replicas, everywhere=terms.everywhere):
        raise Invalid(problem, param="spread_all" if terms.everywhere else "min_replicas")
    if terms.route_policy not in ROUTE_POLICIES:
        raise Invalid(
            f"route_policy: {terms.route_policy[:40]!r} is none of {', '.join(ROUTE_POLICIES[1:])}",
            param="route_policy",
        )
