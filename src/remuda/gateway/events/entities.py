"""What the stream shows, read and rendered: each entity once, and again only when what it is made of has
changed. Without what changes by itself from second to second, or every idle machine would be news for ever.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from remuda.accounts.keys import KeyRing
from remuda.core.clock import Clock
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import NodeStatus, Standing
from remuda.fleet.registry import Registry
from remuda.gateway import model_views, node_views
from remuda.gateway.admin.backends import upgrade_item
from remuda.gateway.attention import needed
from remuda.gateway.events.access_entities import KeyEntities, ServerEntities
from remuda.gateway.events.changes import Rendered
from remuda.gateway.services import Ops, Serving
from remuda.ops.model import OpId, State
from remuda.ops.op_views import op_view, with_steps
from remuda.ops.ports import Filter, View
from remuda.ops.progress import overlaid
from remuda.router.table import Table
from remuda.scheduler.model import Replica
from remuda.scheduler.service import NO_PROBLEM
from remuda.wire.codec import GO_ZERO_TIME, Message, encode
from remuda.wire.console import AttentionItem, ModelEntity, NodeEntity, OperationEntity, ReplicaEntity
from remuda.wire.nodes import GpuFigures
from remuda.wire.operations import UpgradeItem

OPERATIONS_SHOWN_MAX: Final = 50  # Finished ones; those under way are all shown.
_UNDER_WAY_SHOWN_MAX: Final = 1000
STEPS_SHOWN_MAX: Final = 40  # Of one operation.
_PAGE: Final = 200
_NO_CHANGE: Final = 2**62  # None has such a number.
_MODELS_EVERY_S: Final = 2.0  # Their problems are found among the latest loads, which takes a while.
_ROUNDED_BYTES: Final = 16 << 20
_LIVE_FIELDS: Final = ("available_ram", "available_vram", "available_disk")
_AT_WORK: Final = frozenset({State.RUNNING, State.STOPPING, State.FAILED})

_DRIFT_EVERY_S: Final = 30.0
M = TypeVar("M", bound=Message)
_Gpus = tuple[GpuFigures, ...]
_Known = dict[str, tuple[object, M, bytes]]
"""By id: what an entity was made of, itself, and its bytes."""


@dataclass(frozen=True, slots=True)
class AccessParts:
    """`table`: that requests are routed by."""

    keyring: KeyRing
    table: Callable[[], Table]


class Entities:
    """Reads what consoles show."""

    def __init__(
        self, registry: Registry, ops: Ops, serving: Serving, access: AccessParts, clock: Clock
    ) -> None:
        self._registry = registry
        self._serving = serving
        self._clock = clock
        self._looking = anyio.Lock()
        self._operations = OperationEntities(ops)
        self._keys = KeyEntities(access.keyring)
        self._servers = ServerEntities(serving.servers, access.table, serving.in_flight, clock)
        self._upgrades = ops.upgrades
        self._drift: tuple[UpgradeItem, ...] = ()
        self._drift_at_s = float("-inf")
        self._nodes: _Known[NodeEntity] = {}
        self._models: Mapping[str, bytes] = {}
        self._models_at_s = float("-inf")

    async def look(self) -> Rendered:
        async with self._looking:
            return await self._look()

    async def attention_now(self) -> Sequence[AttentionItem]:
        """What needs a person."""
        await self.look()
        return self.attention

    async def _look(self) -> Rendered:
        standings = await self._registry.standings()
        reports = await model_views.current_reports(self._serving, standings)
        rows = await model_views.replicas(self._serving.models, reports)
        gpus = {id: _rounded(report.gpus) for id, report in reports.items() if report is not None}
        rendered = {
            "nodes": self._render_nodes(standings, rows, gpus),
            "models": await self._render_models(standings, rows),
            "replicas": self._render_replicas(standings, rows),
            "operations": await self._operations.look(),
            "servers": await self._servers.look(),
            "keys": self._keys.look(),
        }
        await self._look_for_drift()
        return {**rendered, "attention": {item.id: encode(item) for item in self.attention}}

    @property
    def attention(self) -> Sequence[AttentionItem]:
        """What needs a person, as it was at the last look."""
        nodes = [node for _, node, _ in self._nodes.values()]
        storage = "" if self._serving.storage is None else self._serving.storage.trouble()
        unusable = self._serving.models.unusable
        return needed(nodes, self._operations.shown, self._drift, unusable, storage, self._models)

    async def _look_for_drift(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._drift_at_s >= _DRIFT_EVERY_S:
            self._drift_at_s = now_s
            found = (await self._upgrades.current()).upgrades.values()
            self._drift = tuple(upgrade_item(one) for one in found)

    def _render_nodes(
        self, standings: Sequence[Standing], rows: Sequence[Replica], gpus: Mapping[NodeId, _Gpus]
    ) -> Mapping[str, bytes]:
        of_node = defaultdict[NodeId, list[Replica]](list)
        for row in rows:
            of_node[row.node].append(row)
        now: _Known[NodeEntity] = {}
        for standing in standings:
            mine = of_node[standing.node.id]
            in_flight = {row.key: self._serving.in_flight(row.key) for row in mine}
            cards = gpus.get(standing.node.id, ())
            made_of = _of_node(standing), mine, in_flight, cards
            known = self._nodes.get(standing.node.id)
            if known is None or known[0] != made_of:
                shown = _node(standing, mine, in_flight, cards)
                known = made_of, shown, encode(shown)
            now[standing.node.id] = known
        self._nodes = now
        return {id: body for id, (_, _, body) in now.items()}

    def _render_replicas(self, standings: Sequence[Standing], rows: Sequence[Replica]) -> Mapping[str, bytes]:
        by_node = {standing.node.id: standing for standing in standings}
        return {
            (id := f"{row.node}/{row.key}"): encode(
                ReplicaEntity(
                    id=id,
                    **dict(
                        model_views.replica_view(
                            row, [by_node[row.node]] if row.node in by_node else [], self._serving
                        )
                    ),
                )
            )
            for row in rows
        }

    async def _render_models(
        self, standings: Sequence[Standing], rows: Sequence[Replica]
    ) -> Mapping[str, bytes]:
        now_s = self._clock.monotonic()
        if now_s - self._models_at_s < _MODELS_EVERY_S:
            return self._models
        self._models_at_s = now_s
        models = self._serving.models
        failed = await models.failures()
        with_files = model_views.nodes_by_file(self._serving, standings)
        loaded = {row.key.model for row in rows}
        items = dict[str, bytes]()
        for model in await models.configured():
            name = model.config.id
            problem = NO_PROBLEM if name in loaded else failed.get(name, NO_PROBLEM)
            item = model_views.model_item(model, (), with_files, problem)
            short = {"id": name, "description": "", "problem_details": (), "notes": (), "installed_files": ()}
            items[name] = encode(ModelEntity(**{**dict(item), **short}))
        self._models = items
        return items


def _of_node(standing: Standing) -> object:
    """What decides how a node is shown: neither how long ago it was heard, nor each byte of free memory."""
    node, healthy = standing.node, standing.status is NodeStatus.HEALTHY
    resources = node.resources
    free = tuple(getattr(resources, field) // _ROUNDED_BYTES for field in _LIVE_FIELDS)
    return (
        free,
        (resources.total_ram, resources.total_vram, resources.total_disk, resources.gpu_vendor),
        (node.boot_id, node.version, node.address, node.http_address, node.labels, node.claim),
        (node.approved, node.drained, node.leaving, node.departed, node.left, node.identified_by),
        (node.effective_budget, node.effective_max_replicas, node.source, node.contested_from),
        (node.max_replicas_override, node.vram_budget_override, resources.capability),
        None if healthy else node.last_heard,
        (standing.status, standing.reachability, standing.reasons, bool(standing.unreached)),
    )


def _rounded(gpus: _Gpus) -> _Gpus:
    return tuple(
        one.model_copy(update={"available_vram": one.available_vram // _ROUNDED_BYTES * _ROUNDED_BYTES})
        for one in gpus
    )


def _node(
    standing: Standing, rows: Sequence[Replica], in_flight: Mapping[ReplicaKey, int], gpus: _Gpus
) -> NodeEntity:
    view = model_views.counted(node_views.node_view(standing), rows, in_flight.__getitem__)
    assert view.remuda is not None, "node_view gives the facts"
    healthy = standing.status is NodeStatus.HEALTHY
    rounded = {field: getattr(view, field) // _ROUNDED_BYTES * _ROUNDED_BYTES for field in _LIVE_FIELDS}
    still = {
        "last_heartbeat": GO_ZERO_TIME if healthy else view.last_heartbeat,
        "updated_at": GO_ZERO_TIME,
        "remuda": view.remuda.model_copy(update={"heard_seconds_ago": None, "gpus": gpus}),
    }
    return NodeEntity(**{**dict(view), **rounded, **still})


class OperationEntities:
    """Operations as they were last read: only those that changed since are read again."""

    def __init__(self, ops: Ops) -> None:
        self._operations = ops.operations
        self._views: dict[OpId, View] = {}
        self._newest: int | None = None
        self._known: _Known[OperationEntity] = {}

    async def look(self) -> Mapping[str, bytes]:
        await self._read()
        self._forget()
        board, now = self._operations.board, self._operations.now()
        rendered: _Known[OperationEntity] = {}
        for id, stored in sorted(self._views.items(), key=lambda one: -one[1].number):
            live = tuple(board.of(id, step.node) for step in stored.steps if step.state in _AT_WORK)
            known = self._known.get(id)
            if known is None or known[0] != (stored.change, live):
                view = overlaid(stored, board, now)
                shown = op_view(view) if view.operation.finished_at else self._with_steps(view)
                entity = OperationEntity(**dict(shown))
                known = (stored.change, live), entity, encode(entity)
            rendered[id] = known
        self._known = rendered
        return {id: body for id, (_, _, body) in rendered.items()}

    @property
    def shown(self) -> Sequence[OperationEntity]:
        return [entity for _, entity, _ in self._known.values()]

    def _with_steps(self, view: View) -> OperationEntity:
        few = len(view.steps) <= STEPS_SHOWN_MAX
        at_work = [step.node for step in view.steps if step.state in _AT_WORK][:STEPS_SHOWN_MAX]
        shown = with_steps(
            view, self._operations.now(), self._operations.board, only=None if few else at_work
        )
        steps = tuple(
            step.model_copy(update={"attempts": (), "retry_in_s": None}) for step in shown.steps or ()
        )
        return OperationEntity(**{**dict(shown), "steps": steps})

    async def _read(self) -> None:
        if self._newest is None:
            await self._begin()
        more = True
        while more:
            assert self._newest is not None, "it has begun"
            views, _ = await self._operations.changed_since(self._newest, _PAGE)
            for view in views:
                self._newest = view.change
                self._views[view.operation.id] = view
            more = len(views) == _PAGE

    async def _begin(self) -> None:
        """The place first: what changes meanwhile is read once more."""
        _, self._newest = await self._operations.changed_since(_NO_CHANGE, 1)
        for finished, most in ((False, _UNDER_WAY_SHOWN_MAX), (True, OPERATIONS_SHOWN_MAX)):
            for view in await self._operations.views(Filter(finished=finished, limit=most)):
                self._views[view.operation.id] = view

    def _forget(self) -> None:
        """Those put away, and finished ones beyond the newest."""
        finished = [view for view in self._views.values() if view.operation.finished_at is not None]
        newest = sorted(finished, key=lambda view: view.number, reverse=True)[:OPERATIONS_SHOWN_MAX]
        kept = {view.operation.id for view in newest if not view.operation.dismissed}
        self._views = {
            id: view for id, view in self._views.items() if id in kept or view.operation.finished_at is None
        }
