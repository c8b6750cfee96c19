"""Models and their replicas: configure, load, unload and inspect them; and the progress of a model's load,
for all who may use the model, not only administrators.
"""

from collections.abc import Collection, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Forbidden, NotFound
from remuda.core.hints import did_you_mean
from remuda.core.ids import NodeId
from remuda.gateway import model_views as show
from remuda.gateway.admin.model_installs import removed
from remuda.gateway.admin.operations import NotUnloaded, NotYetUnloaded, wait_for
from remuda.gateway.guards import Admin, Caller, is_own_user, require_admin
from remuda.gateway.messages import (
    KNOWN_FILTERS,
    NO_BODY_FIELDS,
    ModelPath,
    NodePath,
    answer,
    gives,
    one_of,
    read,
    read_known,
    refuses,
    takes,
)
from remuda.gateway.nodes import ModelRows
from remuda.gateway.plan_views import plan_view
from remuda.gateway.services import Services, Svc
from remuda.model_installs.rooms import unknown_backends
from remuda.ops.op_views import with_steps
from remuda.ops.ports import View
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.service import NO_PROBLEM, AlreadyLoaded
from remuda.wire.models import ModelUnload
from remuda.wire.nodes import NodeError, NodeErrorDetail, NodeMessage
from remuda.wire.operations import OpView
from remuda.wire.serving import (
    LoadingView,
    ModelAdd,
    ModelAdded,
    ModelFits,
    ModelItem,
    ModelItems,
    ModelLoaded,
    ModelNamed,
    ModelOps,
    ModelPlan,
    ModelRemovalPlan,
    ModelRemoved,
    ModelStatus,
    ModelUnloadBody,
    ReplicaView,
    ReplicaViews,
    UnusableModel,
)

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])


@routes.get("/api/replicas", responses=gives(ReplicaViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_replicas(svc: Svc) -> Response:
    """Every replica there is, or is about to be."""
    return answer(ReplicaViews(replicas=await _replicas(svc)))


@routes.get("/api/models", responses=gives(ModelItems, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_models(svc: Svc) -> Response:
    """Every configured model, with its replicas."""
    replicas, standings = await _replicas(svc), await svc.registry.standings()
    with_files = show.nodes_by_file(svc.serving, standings)
    known = await svc.serving.models.configured()
    failed = await svc.serving.models.failures()
    named = frozenset(one.config.backend for one in known)
    missing = await unknown_backends(svc.ops.operations.look, named)
    storage = svc.serving.storage
    items = (
        show.model_item(one, replicas, with_files, failed.get(one.config.id, NO_PROBLEM)).model_copy(
            update={
                "backend_unknown": one.config.backend in missing,
                **_in_storage(one.config.id, svc),
            }
        )
        for one in known
    )
    unusable = svc.serving.models.unusable.items()
    return answer(
        ModelItems(
            models=tuple(items),
            unusable=tuple(UnusableModel(source=source, reason=reason) for source, reason in unusable),
            storage_trouble="" if storage is None else storage.trouble(),
        )
    )


def _in_storage(model: str, svc: Services) -> Mapping[str, object]:
    """What object storage has of a model, and lacks."""
    storage = svc.serving.storage
    if storage is None:
        return {}
    return {"storage": storage.state_of(model), "in_storage": storage.has(model)}


@routes.post(
    "/api/models",
    status_code=201,
    openapi_extra=takes(ModelAdd),
    responses=gives(ModelAdded, 400, 401, 409, status=201),
)
async def add_model(request: Request, svc: Svc, admin: Admin) -> Response:
    """Add a model by its YAML, or change the one of its name: its replicas are then replaced. What it names
    and is not there is fetched, by the operation in the answer."""
    body = await read_known(request, ModelAdd)
    check_named_files(body.config, request, svc)
    if body.take_over:
        taken = await svc.serving.edits.take_over(body.config)
        shown = show.taken_over(taken, await model_item(taken.added.model, svc))
        return answer(await with_fetch(shown, request, svc, admin), 201)
    added = await svc.serving.models.add(body.config, only_new=body.only_new)
    shown = show.model_added(added, await model_item(added.model, svc))
    return answer(await with_fetch(shown, request, svc, admin), 201)


def check_named_files(text: str, request: Request, svc: Services, before: str = "") -> None:
    """Forbidden for files of this machine that the caller may not have fetched."""
    if svc.serving.wanted is not None:
        svc.serving.wanted.check(text, on_own_machine=is_own_user(request, svc), before=before)


async def with_fetch(shown: ModelAdded, request: Request, svc: Services, admin: str) -> ModelAdded:
    """The same with the operation that fetches what the configuration names, which is begun where it has to
    be."""
    if svc.serving.wanted is None:
        return shown
    own = is_own_user(request, svc)
    begun = await svc.serving.wanted.begin(shown.model.name, admin, on_own_machine=own)
    if begun is None:
        return shown
    model = await model_item(await svc.serving.models.get(shown.model.name), svc)
    return shown.model_copy(update={"operation": op_view(begun, svc), "model": model})


@routes.post(
    "/api/models/{model:path}/load",
    status_code=202,
    responses={**gives(OpView, 400, 401, 404, 409, status=202), 200: one_of(ModelLoaded)},
    dependencies=[NO_BODY_FIELDS],
)
async def load_model(model: ModelPath, svc: Svc, admin: Admin) -> Response:
    """Load one more replica of it somewhere. 200: it is loaded, and no node can take another."""
    return await _load(model, svc, admin, begun=202)


@routes.post(
    "/api/models/{model:path}/unload",
    status_code=202,
    openapi_extra=takes(ModelUnloadBody, required=False),
    responses=gives(ModelOps, 400, 401, 404, status=202),
)
async def unload_model(model: ModelPath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Unload its replicas: what is in flight ends first. An empty list: there were none."""
    body = await read_known(request, ModelUnloadBody)
    node = await _node_id(body.node, svc) if body.node else None
    ops = await svc.serving.models.unload(model, admin, node=node)
    return answer(ModelOps(operations=tuple(op_view(view, svc) for view in ops)), 202)


@routes.get("/api/models/{model:path}/fits", responses=gives(ModelFits, 401, 404))
async def model_fits(model: ModelPath, svc: Svc) -> Response:
    """Whether each node could take it now, with the reason and the numbers. Nothing is begun."""
    return answer(show.model_fits(await svc.serving.models.fits(model)))


@routes.get("/api/models/{model:path}/plan", responses=gives(ModelPlan, 401, 404))
async def model_plan(model: ModelPath, svc: Svc) -> Response:
    """Where one more replica of it would be loaded now, after what, how soon, and why not elsewhere."""
    return answer(plan_view(await svc.serving.models.plan(model)))


@routes.get("/api/models/{model:path}", responses=gives(ModelItem, 401, 404))
async def one_model(model: ModelPath, svc: Svc) -> Response:
    """One model, with what its files say of themselves."""
    found = await svc.serving.models.get(model)
    item = await model_item(found, svc)
    stored = _in_storage(found.config.id, svc)
    return answer(item.model_copy(update={"details": show.model_details(found), **stored}))


@routes.delete(
    "/api/models/{model:path}",
    responses={**gives(ModelRemoved, 400, 401, 404, 409), 200: one_of(ModelRemoved, ModelRemovalPlan)},
)
async def remove_model(
    model: ModelPath,
    svc: Svc,
    admin: Admin,
    files: Annotated[bool, Query(description="Also files that the fleet has not brought.")] = False,
    dry_run: Annotated[bool, Query(description="Only say what would go. Nothing is begun.")] = False,
) -> Response:
    """Forget a model and unload it. What the fleet has brought for it goes by the operation in the answer, on
    nodes that are away when they return; what a person has put there stays, unless `files` is set."""
    if dry_run:
        return answer(await _removal(model, svc, files=files))
    found = await svc.serving.models.get(model)
    stored = any(_in_storage(found.config.id, svc).values())
    submitted = await removed(model, svc, admin, files=files)
    view = op_view(submitted.view, svc)
    spec = submitted.operation.source.model
    going = () if spec is None else spec.files
    kept = _kept(found, going) if not files else ""
    return answer(ModelRemoved(message="model removed", operation=view, file_kept=kept, in_storage=stored))


async def _removal(model: str, svc: Services, *, files: bool) -> ModelRemovalPlan:
    found = await svc.serving.models.removable(model)
    name = found.config.id
    going = await svc.serving.installs.removal(name, files=files)
    sizes = _brought(found)
    gone = [path for path in going.paths if files or path in sizes]  # A person's stay on frontends.
    loaded = [row for row in await _replicas(svc) if row.model == name and row.state == "loaded"]
    others = await svc.serving.models.configured()
    return ModelRemovalPlan(
        model=name,
        files=tuple(gone),
        bytes=sum(sizes.get(path, 0) for path in gone),
        nodes=tuple(one.node.name for one in going.having),
        nodes_kept=tuple(one.node.name for one in going.left),
        file_kept="" if files else _kept(found, going.paths),
        aliases=tuple(one.config.id for one in others if one.config.alias == name),
        replicas=len(loaded),
    )


def _brought(model: Catalogued) -> Mapping[str, int]:
    """The files that the fleet has brought for it, with their sizes."""
    manifest = model.stored.manifest
    return {} if manifest is None else {file.path: file.size for file in manifest.files}


def _kept(model: Catalogued, going: Collection[str]) -> str:
    """The model's own file, where a person has put it there."""
    file = model.config.file
    return file if model.here and file in going and file not in _brought(model) else ""


# By node, as the contract has it.


@routes.get("/api/nodes/models", responses=gives(ModelRows, 401))
async def loaded_everywhere(svc: Svc) -> Response:
    """Replicas that are loaded on healthy nodes."""
    healthy = {one.node.id for one in await svc.registry.standings() if one.status == "healthy"}
    rows = [row for row in await show.model_rows(svc) if row.state == "loaded" and row.node_id in healthy]
    return answer(ModelRows(rows))


@routes.get("/api/nodes/{node_id}/models", responses=gives(ModelRows, 401, 404))
async def on_node(node_id: NodePath, svc: Svc) -> Response:
    """The replicas on one node."""
    await svc.registry.standing(node_id)
    return answer(ModelRows([row for row in await show.model_rows(svc) if row.node_id == node_id]))


@routes.post(
    "/api/nodes/{node_id}/models/unload",
    openapi_extra=takes(ModelUnload),
    responses=gives(NodeMessage, 400, 401, 404) | refuses(500, 504),
)
async def unload_from_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Unload a model from one node, and answer when it is gone, which it is as soon as nothing is in flight
    there; 504 when that takes longer, and goes on."""
    await _unload_from(node_id, request, svc, admin)
    return answer(NodeMessage(message="model unloaded"))


@routes.post(
    "/api/nodes/{node_id}/models/delete",
    openapi_extra=takes(ModelUnload),
    responses=gives(NodeMessage, 400, 401, 404) | refuses(500, 504),
)
async def delete_from_node(node_id: NodePath, request: Request, svc: Svc, admin: Admin) -> Response:
    """The same, in the words of peers: its files stay."""
    await _unload_from(node_id, request, svc, admin)
    return answer(NodeMessage(message="model deleted from node"))


async def _unload_from(node_id: NodeId, request: Request, svc: Services, admin: str) -> None:
    await svc.registry.standing(node_id)  # First, for what is sent to no node matters not.
    body = await read(request, ModelUnload)
    for view in await svc.serving.models.unload(body.model_name, admin, node=node_id):
        await wait_for(svc, view.operation.id, late=NotYetUnloaded, failed=NotUnloaded)


# LocalAI's own, by model.


@routes.post("/backend/shutdown", openapi_extra=takes(ModelNamed), responses=gives(ModelOps, 400, 401, 404))
async def shut_down(request: Request, svc: Svc, admin: Admin) -> Response:
    """Unload a model everywhere."""
    body = await read(request, ModelNamed)
    ops = await svc.serving.models.unload(body.model, admin)
    return answer(ModelOps(operations=tuple(op_view(view, svc) for view in ops)))


@routes.post("/backend/load", openapi_extra=takes(ModelNamed), responses=gives(OpView, 400, 401, 404, 409))
async def preload(request: Request, svc: Svc, admin: Admin) -> Response:
    """Load a model ahead of its first request."""
    body = await read(request, ModelNamed)
    return await _load(body.model, svc, admin, begun=200)


async def _load(model: str, svc: Services, admin: str, *, begun: int) -> Response:
    match await svc.serving.models.load(model, admin):
        case AlreadyLoaded(nodes, others):
            return answer(ModelLoaded(model=model, nodes=nodes, others=others))
        case view:
            return answer(op_view(view, svc), begun)


@routes.get("/backend/monitor", responses=gives(ModelStatus, 400, 401, 404))
async def monitor(
    request: Request,
    svc: Svc,
    model: Annotated[str, Query(max_length=1024, description="Its name; the body may have it instead.")] = "",
) -> Response:
    """How a model is, in the words that backends use: its state over all replicas, and their memory."""
    named = model or (await read(request, ModelNamed)).model
    found = await svc.serving.models.get(named)
    replicas = await _replicas(svc)
    return answer(show.model_status([one for one in replicas if one.model == found.config.id]))


async def model_item(model: Catalogued, svc: Services) -> ModelItem:
    problem = await svc.serving.models.problem(model)
    with_files = show.nodes_by_file(svc.serving, await svc.registry.standings())
    return show.model_item(model, await _replicas(svc), with_files, problem)


async def _replicas(svc: Services) -> tuple[ReplicaView, ...]:
    serving, standings = svc.serving, await svc.registry.standings()
    rows = await show.current_replicas(svc.serving, standings)
    return tuple(show.replica_view(row, standings, serving) for row in rows)


async def _node_id(node: str, svc: Services) -> NodeId:
    nodes = [standing.node for standing in await svc.registry.standings()]
    for one in nodes:
        if node in (one.name, one.id):
            return one.id
    hint = did_you_mean(node, (one.name for one in nodes), "remuda nodes lists those there are")
    raise NotFound(f"there is no node {node!r}", hint=hint)


def op_view(view: View, svc: Services) -> OpView:
    operations = svc.ops.operations
    return with_steps(view, operations.now(), operations.board)


load_status_routes = APIRouter(tags=["models"])


@load_status_routes.get("/api/models/{model:path}/load-status", responses=gives(LoadingView, 401, 404))
async def load_status(model: ModelPath, svc: Svc, caller: Caller) -> Response:
    """How far its load is, or that it has just failed; 404 when none is under way."""
    if caller is not None and caller.models and model not in caller.models:
        raise Forbidden(f"the key {caller.name!r} is not for the model {model!r}")
    status = await svc.serving.load_status(model)
    told = next((one for one in svc.serving.staging_elsewhere() if one.model_id == model), None)
    if status is None and told is not None:
        return answer(show.loading_elsewhere(told))
    if status is None:
        words = f"{model} is not being loaded"
        return answer(NodeError(error=NodeErrorDetail(code=404, message=words, type="not_found_error")), 404)
    return answer(show.loading_view(status))
