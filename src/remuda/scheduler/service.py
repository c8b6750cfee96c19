"""What people can do with models: add, remove, load, unload and list them. No call waits for a node."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from remuda.core.errors import Conflict, Invalid, NoCapacity, NotFound
from remuda.core.hints import did_you_mean, pasted
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Standing
from remuda.fleet.model import Node
from remuda.fleet.node_views import current_report
from remuda.fleet.verdicts import is_up
from remuda.models.backend_options import check_options, option_doubts
from remuda.models.config import ModelConfig
from remuda.models.memory import context_problem, context_warning
from remuda.models.paths import check_absolute_paths
from remuda.models.reading import check_file, check_new_name, located, misspelled, read_model
from remuda.models.wanted_sources import checked_sources
from remuda.ops.model import Kind, OpId, State, Step, UnloadCause, UnloadReason
from remuda.ops.ports import Filter, OpStore, View
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.claimed_names import INSTALLS, ClaimedNames
from remuda.scheduler.demand import Placer, loads_present
from remuda.scheduler.model import (
    ADDED,
    REASONS_MAX,
    ModelFit,
    Replica,
    ReplicaState,
    StoredModel,
    Unplaceable,
)
from remuda.scheduler.plans import ReplicaPlan
from remuda.scheduler.ports import (
    FilesComing,
    FilesNotFetched,
    ModelFetches,
    ModelStore,
    ReplicaStore,
    RoutingTable,
)
from remuda.scheduler.replica_goals import may_be_replaced
from remuda.scheduler.unloader import UnloadRequests
from remuda.wire.nodes import RunningReplica

_TRIES = 5  # Others place replicas, too.
_LOADS: Final = frozenset({Kind.LOAD})
_LOADS_LOOKED_AT: Final = 200
_NOT_RUNNING: Final = frozenset({"failed", "stopping", "waiting"})


class Planner(Placer, Protocol):
    async def fits(self, model: Catalogued) -> ModelFit:
        """Whether each node could take it. Nothing is begun."""
        ...

    async def plan(self, model: Catalogued) -> ReplicaPlan:
        """What one more replica of it would take now. Nothing is begun."""
        ...

    async def why_nowhere(self, model: Catalogued) -> Unplaceable | None:
        """Why no node could take it, if that was asked for now; None: one could. Nothing is begun."""
        ...


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model that was added, and what to know about it."""

    model: Catalogued
    replaced: bool
    unknown_keys: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    unchanged: bool = False  # It was there already, with this very text.
    no_node: bool = False  # None can take it, as one of the warnings says.
    reloads: bool = False  # Replicas of what it was before are replaced.


@dataclass(frozen=True, slots=True)
class ModelProblem:
    """Why a model could not be loaded, and when its last load failed; None: that is not the reason."""

    text: str = ""  # Empty: nothing stands in its way.
    failed_at: datetime | None = None
    details: tuple[str, ...] = ()  # One line for each reason in `text`, which names only some.
    fetching: str = ""  # No problem: the operation that fetches what its configuration names.


NO_PROBLEM: Final = ModelProblem()


@dataclass(frozen=True, slots=True)
class AlreadyLoaded:
    """The model is loaded on `nodes`, and no node can take another replica of it: `others` says why not."""

    nodes: tuple[str, ...]
    others: tuple[str, ...] = ()  # `a, b: why`, of the nodes that do not have it.


class Models:
    """`table` is read again before an answer, so that a caller finds in it what the answer says."""

    def __init__(
        self,
        catalogue: ModelCatalogue,
        store: ModelStore,
        replicas: ReplicaStore,
        operations: OpStore,
        placer: Planner,
        unloads: UnloadRequests,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        *,
        table: RoutingTable,
        claims: ClaimedNames,
        fetches: ModelFetches | None = None,
    ) -> None:
        self._claims = claims
        self._fetches = fetches
        self._catalogue = catalogue
        self._store = store
        self._replicas = replicas
        self._operations = operations
        self._placer = placer
        self._unloads = unloads
        self._standings = standings
        self._table = table

    async def configured(self) -> Sequence[Catalogued]:
        await self._catalogue.refresh()
        return sorted(self._catalogue.configured.values(), key=_name)

    @property
    def unusable(self) -> Mapping[str, str]:
        """Files and stored models that this frontend cannot use, each with the reason."""
        return self._catalogue.unusable

    async def get(self, name: str) -> Catalogued:
        await self._catalogue.refresh()
        found = self._catalogue.configured.get(name)
        if found is None:
            if coming := await being_installed(self._operations, name):
                raise coming
            names = self._catalogue.configured
            hint = did_you_mean(name, names, "remuda models lists those there are")
            raise NotFound(f"there is no model {name!r}", hint=hint)
        return found

    async def add(self, text: str, *, only_new: bool = False) -> AddedModel:
        """Add a model, or give the one of its name this configuration: its replicas are then replaced. With
        `only_new`, Conflict where the one of its name has another."""
        config = read_model(text)
        await self._catalogue.refresh()
        before = self._catalogue.configured.get(config.id)
        if before is not None:
            require_added(before.stored)
        with located(text):
            warnings = await self.check(config, new=before is None)
        if before is None:
            warnings = (*warnings, *await self._claims.claim(config))
        model = StoredModel(config.id, text, config.revision, ADDED)
        if not only_new:
            await self._store.put_model(model)
        elif before is not None or await self._store.put_new(model) is None:
            before = await self.get(config.id)  # Perhaps added by another request just now.
            _require_same(before, text)
        self._table.rows_changed()
        await self._table.refresh()
        same = before is not None and before.stored.text == text
        return AddedModel(await self.get(config.id), before is not None, config.unknown, warnings, same)

    async def require_free(self, name: str) -> None:
        """Conflict while a model is being installed under this name."""
        await self._claims.require_free(name)

    async def check(self, config: ModelConfig, *, new: bool) -> tuple[str, ...]:
        """What to know about a configuration that is accepted. Invalid, naming the field, for another."""
        check_absolute_paths(config, self._catalogue.models_path)
        check_file(config)
        checked_sources(config)
        check_options(config)
        if new:
            check_new_name(config.id)
        self._check_alias(config)
        weights = await self._catalogue.weights(config)
        trained = weights.header.context_length if weights.header else 0
        if problem := context_problem(config.context_size, trained):
            raise Invalid(problem, param="context_size")
        doubts = [context_warning(config.context_size, trained), weights.cut_off, *option_doubts(config)]
        return tuple(filter(None, (*doubts, *misspelled(config.unknown))))

    def _check_alias(self, config: ModelConfig) -> None:
        """Invalid for a second name of a model that is not there, or that is itself a second name."""
        if not config.alias:
            return
        known = self._catalogue.configured
        if config.alias == config.id:
            raise Invalid(f"alias: {config.id} cannot be another name for itself", param="alias")
        if config.alias not in known:
            hint = did_you_mean(config.alias, known, "remuda models lists those there are")
            raise Invalid(f"alias: there is no model {config.alias!r}", hint=hint, param="alias")
        if further := known[config.alias].config.alias:
            raise Invalid(
                f"alias: {config.alias} is itself another name for {further}",
                hint=f"use alias: {further}",
                param="alias",
            )

    async def remove(self, name: str, by: str) -> None:
        """Its replicas go as well; its files stay where they are. NotFound if it is gone already, and then it
        is not listed here any more either."""
        try:
            found = await self.removable(name)
            await self._store.remove_model(found.config.id)
        except NotFound:
            await self._table.refresh()
            raise
        await self.unload_all(found.config.id, by, UnloadReason(UnloadCause.MODEL_REMOVED))
        self._table.rows_changed()
        await self._table.refresh()

    async def removable(self, name: str) -> Catalogued:
        """NotFound for a model that is not there, Conflict for one that a file describes."""
        found = await self.get(name)
        require_added(found.stored)
        return found

    async def load(self, name: str, by: str) -> View | AlreadyLoaded:
        """The operation that loads one more replica, or the one that is about to load the first. NoCapacity
        when no node can take it and none has it."""
        model = await self.get(name)
        if model.config.disabled:
            raise Conflict(f"{name} is disabled", hint="remove `disabled: true` from its configuration")
        if lacking := await self._lacking(model):
            raise _not_fetched(name, lacking)
        for _ in range(_TRIES):
            coming = await self._coming(model.config.id)
            if coming is not None:
                return await self._operations.view(coming.op)
            try:
                begun = await self._placer.begin(model, by)
            except Conflict:
                continue
            if isinstance(begun, Unplaceable):
                return await self._without_another(model.config.id, begun)
            if begun is not None:
                return await self._operations.view(begun.op)
        raise Conflict(f"{name} could not be placed: others place replicas all the time", hint="try again")

    async def load_again(self, name: str, by: str) -> None:
        """In place of a replica that was lost, if its model is to have as many."""
        model = await self.get(name)
        if may_be_replaced(model.config, (await self._replicas.replicas()).rows):
            await self.load(name, by)

    async def _without_another(self, model: str, refused: Unplaceable) -> AlreadyLoaded:
        up = {one.node.id: one.node.name for one in await self._standings() if is_up(one)}
        rows = (await self._replicas.replicas()).rows
        loaded = [row for row in rows if row.key.model == model and row.state is ReplicaState.LOADED]
        nodes = sorted({up[row.node] for row in loaded if row.node in up})
        if not nodes:
            raise NoCapacity(_nowhere(model, refused), details=refused.told())
        return AlreadyLoaded(tuple(nodes), tuple(refused.told(leaving_out=nodes)))

    async def unload(self, name: str, by: str, *, node: NodeId | None = None) -> Sequence[View]:
        """An operation for each replica of it, on this node or anywhere: also for processes of it that no row
        stands for, as their workers report them."""
        model = (await self.get(name)).config.id
        return await self.unload_all(model, by, UnloadReason(UnloadCause.ASKED, by=by), node)

    async def unload_all(
        self, model: str, by: str, why: UnloadReason, node: NodeId | None = None
    ) -> Sequence[View]:
        """The same for a model that need not be configured any more."""
        rows = (await self._replicas.replicas()).rows
        found = [*rows, *unrecorded(rows, await self._standings())]
        meant = [row for row in found if row.key.model == model and (node is None or row.node == node)]
        ops = [await self._unloads.ask(row, by, why) for row in meant]
        return [await self._operations.view(op) for op in ops]

    async def failures(self, name: str = "") -> Mapping[str, ModelProblem]:
        """Why the last load of a model failed, if it did and nothing was changed or dismissed since,
        nor removed the node: of one model, or of all, as far back as the latest loads go. And what is wrong
        with a configuration that came as a file: one that is added is refused for it."""
        loads = Filter(kinds=_LOADS, model=name, dismissed=True, limit=1 if name else _LOADS_LOOKED_AT)
        last: dict[str, View] = {}
        for view in await self._operations.views(loads):
            if view.operation.target is not None:
                last.setdefault(view.operation.target.key.model, view)
        known = self._catalogue.configured
        nodes = {standing.node.id for standing in await self._standings()} if last else set()
        failed = {
            model: ModelProblem(
                f"it could not be loaded on {step.node_name}: {_why(step)}", view.operation.finished_at
            )
            for model, view in last.items()
            if model in known and loads_present(view.operation, known[model])
            for step in view.steps
            if step.state is State.FAILED and not view.operation.dismissed and step.node in nodes
        }
        looked_at = [known[name]] if name in known else [] if name else known.values()
        wrong = {one.config.id: ModelProblem(why) for one in looked_at if (why := _context_problem(one))}
        unfetched = {one.config.id: await self._unfetched(one) for one in looked_at if one.lacks_files}
        return {**failed, **wrong, **unfetched}

    async def _lacking(self, model: Catalogued) -> FilesComing | FilesNotFetched | None:
        if not model.lacks_files or model.config.disabled or self._fetches is None:
            return None
        return await self._fetches.state(model.stored)

    async def _unfetched(self, model: Catalogued) -> ModelProblem:
        """Of a model whose configuration names files that were not fetched yet."""
        lacking = await self._lacking(model)
        match lacking:
            case None:
                return NO_PROBLEM
            case FilesComing(op):
                return ModelProblem(fetching=op) if op else ModelProblem(str(lacking))
            case FilesNotFetched(problem):
                hint = f" ({problem.hint})" if problem.hint else ""
                return ModelProblem(f"{lacking}{hint}")

    async def fits(self, name: str) -> ModelFit:
        """Whether each node could take it now, with placement's own reasons. NotFound for an unknown one."""
        return await self._placer.fits(await self.get(name))

    async def plan(self, name: str) -> ReplicaPlan:
        """What one more replica of it would take now. NotFound for an unknown model."""
        model = await self.get(name)
        if model.config.alias:
            model = await self.get(model.config.alias)
        return await self._placer.plan(model)

    async def problem(self, model: Catalogued) -> ModelProblem:
        """Why it could not answer now, as far as is known."""
        config = model.config
        if (
            config.disabled
            or config.alias
            or _only_elsewhere(config)
            or any(row.key.model == config.id for row in await self.replicas())
        ):
            return NO_PROBLEM
        if failed := (await self.failures(config.id)).get(config.id):
            return failed
        if model.lacks_files:
            return NO_PROBLEM
        nowhere = await self._placer.why_nowhere(model)
        if nowhere is None or nowhere.waiting_helps:
            return NO_PROBLEM
        return ModelProblem(_nowhere(config.id, nowhere), details=tuple(nowhere.told()))

    async def nowhere(self, model: Catalogued) -> str:
        """A warning where no node could take it, whatever is loaded of it now; empty: one could."""
        if model.lacks_files:  # How large it is, its files will tell.
            return ""
        refused = await self._placer.why_nowhere(model)
        config = model.config
        if refused is None or refused.waiting_helps or config.disabled or config.alias:
            return ""
        if _only_elsewhere(config):
            return ""
        return _nowhere(model.config.id, refused)

    async def replicas(self) -> Sequence[Replica]:
        rows = (await self._replicas.replicas()).rows
        return sorted(rows, key=lambda row: (row.key.model, row.key.index))

    async def _coming(self, model: str) -> Replica | None:
        on_its_way = (ReplicaState.STAGING, ReplicaState.LOADING)
        rows = (await self._replicas.replicas()).rows
        return next((row for row in rows if row.key.model == model and row.state in on_its_way), None)


def _not_fetched(name: str, lacking: FilesComing | FilesNotFetched) -> Conflict:
    if isinstance(lacking, FilesNotFetched):
        return Conflict(f"{name} cannot be loaded: {lacking}", hint=lacking.problem.hint)
    hint = f"see how far it is: remuda ops watch {lacking.op[:8]}" if lacking.op else "try again in a while"
    return Conflict(f"{name} cannot be loaded yet: {lacking}", hint=hint)


def require_added(model: StoredModel) -> None:
    """Conflict for a model that a file describes: the next look at that file would undo any change."""
    if model.file:
        where = f"on {model.host}" if model.host else "of a frontend"
        raise Conflict(
            f"{model.name} is described by the file {model.file} in the models folder {where}",
            hint="change or remove that file, or take the model over with: remuda models import "
            f"{pasted(model.name)}",
        )


async def being_installed(operations: OpStore, name: str) -> NotFound | None:
    """What to answer for a model that is not there yet; None: none is being installed under this name."""
    for view in await operations.views(Filter(finished=False, kinds=INSTALLS, model=name, limit=1)):
        op = view.operation.id[:8]
        return NotFound(
            f"there is no model {name!r} yet: it is being installed",
            hint=f"see how far it is: remuda ops watch {op}; to end it: remuda ops cancel {op}",
        )
    return None


def _require_same(there: Catalogued, text: str) -> None:
    """Conflict, naming what is there, for a model that an add would replace."""
    if there.stored.text == text:
        return
    config, manifest = there.config, there.stored.manifest
    what = f"another name for {config.alias}" if config.alias else f"with the file {config.file}"
    if manifest is not None and manifest.source:
        what = f"which came from {manifest.source}"
    elif not (config.alias or config.file):
        what = f"with the backend {config.backend}"
    raise Conflict(
        f"there is a model {config.id} already, {what}",
        hint="choose another name with --name, or give --replace to replace it and its settings",
    )


def unrecorded(rows: Iterable[Replica], standings: Iterable[Standing]) -> list[Replica]:
    """Processes of models that run on nodes that are up, and that no row stands for, as if they had one."""
    known = {(row.node, row.key) for row in rows}
    return [
        Replica(key, node.id, ReplicaState.LOADED, OpId(""), replica.backend, "", instance=replica.instance)
        for standing in standings
        if (node := standing.node) and is_up(standing)
        for replica in _reported(node)
        if (key := ReplicaKey(replica.model_id, replica.replica_index)) and (node.id, key) not in known
    ]


def _reported(node: Node) -> Sequence[RunningReplica]:
    """A process under its backend's own name has no model in it."""
    report = current_report(node)
    replicas = () if report is None else report.replicas
    return [
        one for one in replicas if one.model_id not in ("", one.backend) and one.state not in _NOT_RUNNING
    ]


def _why(step: Step) -> str:
    return step.reason if step.problem is None else step.problem.message


def _only_elsewhere(config: ModelConfig) -> bool:
    """It is a name for models on servers that run without us: no node is meant to have it."""
    return bool(config.upstreams) and not config.file and not config.backend


def _nowhere(model: str, refused: Unplaceable) -> str:
    reasons = "; ".join(refused.told(most=REASONS_MAX))
    return f"no node can take {model}: {reasons or 'there are no nodes'}"


def _context_problem(model: Catalogued) -> str:
    header = model.weights.header
    return context_problem(model.config.context_size, header.context_length if header else 0)


def _name(model: Catalogued) -> str:
    return model.config.id
