"""Models as text: read, replaced, changed key by key, renamed, and taken over from files. A change names the
text that it was made to (If-Match), so that two people who edit at once do not overwrite each other.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from remuda.core.errors import Invalid
from remuda.gateway import model_views as show
from remuda.gateway.admin.models import check_named_files, model_item, op_view, with_fetch
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import NO_BODY_FIELDS, ModelPath, answer, gives, one_of, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.scheduler.model_edits import ANY, Stale
from remuda.scheduler.service import AddedModel
from remuda.wire.nodes import NodeError, NodeErrorDetail
from remuda.wire.serving import (
    ModelAdded,
    ModelEditConflict,
    ModelPatch,
    ModelRename,
    ModelRenamed,
    ModelReplace,
    ModelText,
)

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])
IfMatch = Annotated[
    str, Header(alias="If-Match", description="The ETag of the text that the change was made to, or *.")
]
_CHANGED = {**gives(ModelAdded, 400, 401, 404), 409: one_of(NodeError, ModelEditConflict)}


@routes.get("/api/models/{model:path}/config", responses=gives(ModelText, 401, 404))
async def model_config(model: ModelPath, svc: Svc) -> Response:
    """Its YAML as it was given, comments included, with an ETag for changing it."""
    stored = (await svc.serving.models.get(model)).stored
    answered = answer(show.model_text(stored))
    answered.headers["ETag"] = f'"{stored.etag}"'
    return answered


@routes.put("/api/models/{model:path}/config", openapi_extra=takes(ModelReplace), responses=_CHANGED)
async def replace_config(
    model: ModelPath, request: Request, svc: Svc, admin: Admin, if_match: IfMatch = ""
) -> Response:
    """Replace its YAML; `reloads`: its replicas are then replaced. 409 with both texts when it was changed
    meanwhile. With `dry_run` nothing is changed: the answer says what would come of it, `model` as it is."""
    body = await read_known(request, ModelReplace)
    if not if_match:
        raise Invalid(
            "If-Match is missing: it names the text that the change was made to",
            hint="send the ETag of GET on this path, or * to overwrite whatever is there",
        )
    before = (await svc.serving.models.get(model)).stored.text
    check_named_files(body.config, request, svc, before)
    try:
        edits = svc.serving.edits
        change = edits.preview if body.dry_run else edits.replace
        added = await change(model, body.config, _etag(if_match))
    except Stale as error:
        return _both(error, body.config)
    return await _added(added, svc) if body.dry_run else await _added(added, svc, request, admin)


@routes.patch("/api/models/{model:path}/config", openapi_extra=takes(ModelPatch), responses=_CHANGED)
async def patch_config(
    model: ModelPath, request: Request, svc: Svc, admin: Admin, if_match: IfMatch = ANY
) -> Response:
    """Set some of its keys, and leave every other byte as it is. Maps are merged, null removes a key."""
    body = await read_known(request, ModelPatch)
    try:
        added = await svc.serving.edits.patch(model, body.set, body.assign, _etag(if_match))
    except Stale as error:
        return _both(error, "")
    return await _added(added, svc, request, admin)


@routes.post(
    "/api/models/{model:path}/rename",
    openapi_extra=takes(ModelRename),
    responses=gives(ModelRenamed, 400, 401, 404, 409),
)
async def rename_model(model: ModelPath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Give it another name. Replicas are unloaded, keys that are limited to the old name and aliases follow;
    409 while it is being loaded or installed."""
    body = await read_known(request, ModelRename)
    renamed = await svc.serving.edits.rename(model, body.name, admin, keep_alias=body.keep_alias)
    if renamed.keys:
        await svc.keyring.refresh()
    return answer(
        ModelRenamed(
            model=await model_item(renamed.model, svc),
            unloads=tuple(op_view(view, svc) for view in renamed.unloads),
            keys=renamed.keys,
            aliases=renamed.aliases,
        )
    )


@routes.post(
    "/api/models/{model:path}/import",
    responses=gives(ModelAdded, 400, 401, 404, 409),
    dependencies=[NO_BODY_FIELDS],
)
async def import_model(model: ModelPath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Take over a model that a file in this frontend's models folder describes: the file is renamed, and
    from now on the model is changed here."""
    taken = await svc.serving.edits.take_over_file(model)
    shown = show.taken_over(taken, await model_item(taken.added.model, svc))
    return answer(await with_fetch(shown, request, svc, admin))


async def _added(
    added: AddedModel, svc: Services, request: Request | None = None, admin: str = ""
) -> Response:
    """With a `request` that has changed it: what is to be fetched for it is begun."""
    shown = show.model_added(added, await model_item(added.model, svc))
    answered = answer(shown if request is None else await with_fetch(shown, request, svc, admin))
    answered.headers["ETag"] = f'"{added.model.stored.etag}"'
    return answered


def _etag(header: str) -> str:
    return header.strip().removeprefix("W/").strip('"')


def _both(error: Stale, yours: str) -> Response:
    detail = NodeErrorDetail(
        code=409, message=error.public_text, type="invalid_request_error", reason=error.code, hint=error.hint
    )
    return answer(ModelEditConflict(error=detail, current=show.model_text(error.current), yours=yours), 409)
