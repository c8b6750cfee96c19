"""The paths of Ollama's API that no model answers: what there is, what is loaded, and for admins installing
and removing models. Refusals are in Ollama's shape, too.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing
from typing import Final, TypeVar

import anyio
import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from remuda.core.errors import NotFound, RemudaError
from remuda.core.hints import did_you_mean
from remuda.gateway import model_views as show
from remuda.gateway.admin.model_installs import removed
from remuda.gateway.guards import Admin, Caller, is_own_user
from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.messages import JSON, SCHEMAS, OpenApiPart, Responses, body
from remuda.gateway.ollama import listing, pulls
from remuda.gateway.ollama.errors import OllamaError, error_body
from remuda.gateway.ollama.listing import (
    API_LEVEL,
    OllamaLoadedModels,
    OllamaModels,
    OllamaShown,
    OllamaVersion,
)
from remuda.gateway.ollama.names import other_names, shown_name
from remuda.gateway.ollama.pulls import OllamaNamed, OllamaProgress, OllamaPulled
from remuda.gateway.ollama.rendering import NDJSON, on_one_line
from remuda.gateway.services import Services, Svc
from remuda.model_installs.service import InstallRequest
from remuda.ops.feed import LOOK_EVERY
from remuda.ops.model import OpId
from remuda.ops.op_views import with_steps
from remuda.router.table import RoutedModel
from remuda.wire.operations import OpView

routes = APIRouter(tags=["ollama"])
SCHEMA_TYPES: Final = (
    OllamaModels,
    OllamaLoadedModels,
    OllamaShown,
    OllamaVersion,
    OllamaNamed,
    OllamaPulled,
    OllamaProgress,
    OllamaError,
)
"""For the OpenAPI document."""
_PULLED: Final = msgspec.json.Decoder(OllamaPulled)
_NAMED: Final = msgspec.json.Decoder(OllamaNamed)
_SIGN_OF_LIFE_S: Final = 10.0  # Clients and proxies give up streams that say nothing for long.
B = TypeVar("B", OllamaPulled, OllamaNamed)


def _schema(kind: type[msgspec.Struct]) -> OpenApiPart:
    return {"schema": {"$ref": SCHEMAS.format(model=kind.__name__)}}


def _gives(kind: type[msgspec.Struct], *errors: int) -> Responses:
    refused = {"content": {JSON: _schema(OllamaError)}}
    refusals: Responses = {status: refused for status in sorted({*errors, 401, 403, 413, 431, 503})}
    return {200: {"content": {JSON: _schema(kind)}}, **refusals}


def _takes(kind: type[msgspec.Struct]) -> OpenApiPart:
    return {"requestBody": {"required": True, "content": {JSON: _schema(kind)}}}


@routes.get("/api/version", responses=_gives(OllamaVersion))
async def ollama_version(svc: Svc, caller: Caller) -> Response:
    """Which release of Ollama has the API that is spoken here."""
    return _answer(OllamaVersion(API_LEVEL, svc.version))


@routes.get("/api/tags", responses=_gives(OllamaModels))
async def ollama_tags(svc: Svc, caller: Caller) -> Response:
    """Models that can be asked for."""
    known = {one.config.id: one for one in await svc.serving.models.configured()}
    entries = _allowed(svc, caller)
    return _answer(
        OllamaModels(
            [
                listing.listed(
                    shown_name(name, entries), known.get(entry.config.alias or name), entry.created
                )
                for name, entry in sorted(entries.items())
                if entry.listed
            ]
        )
    )


@routes.get("/api/ps", responses=_gives(OllamaLoadedModels))
async def ollama_ps(svc: Svc, caller: Caller) -> Response:
    """Models that are loaded, each with all its replicas together."""
    standings = await svc.registry.standings()
    rows = await show.current_replicas(svc.serving, standings)
    views = [show.replica_view(row, standings, svc.serving) for row in rows]
    known = {one.config.id: one for one in await svc.serving.models.configured()}
    entries = _allowed(svc, caller)
    found = []
    for name, entry in sorted(entries.items()):
        replicas = [one for one in views if one.model == name and one.state == "loaded"]
        if replicas:
            shown = shown_name(name, entries)
            found.append(listing.loaded(shown, known.get(name), replicas, entry.context))
    return _answer(OllamaLoadedModels(found))


@routes.post("/api/show", openapi_extra=_takes(OllamaNamed), responses=_gives(OllamaShown, 400, 404))
async def ollama_show(request: Request, svc: Svc, caller: Caller) -> Response:
    """What is known of one model."""
    wanted = await _read(request, _NAMED)
    name, entry = await _found(svc, caller, wanted.wanted)
    target = entry.config.alias or name
    model = await svc.serving.models.get(target)
    context = svc.inference.tables.now.models.get(target, entry).context
    return _answer(listing.shown(model, context, entry.created))


@routes.delete(
    "/api/delete", openapi_extra=_takes(OllamaNamed), responses=_gives(OllamaProgress, 400, 404, 409)
)
async def ollama_delete(request: Request, svc: Svc, admin: Admin) -> Response:
    """Remove a model and what the fleet has brought for it, as DELETE /api/models/{model} does: it answers no
    request any more, and its files go by an operation."""
    name, _ = await _found(svc, None, (await _read(request, _NAMED)).wanted)
    await removed(name, svc, admin)
    return _answer(pulls.SUCCESS)


_STREAMED: Final[Responses] = {
    200: {"content": {NDJSON.decode(): _schema(OllamaProgress), JSON: _schema(OllamaProgress)}}
}


@routes.post(
    "/api/pull",
    openapi_extra=_takes(OllamaPulled),
    responses=_gives(OllamaProgress, 400, 404, 409, 502) | _STREAMED,
)
async def ollama_pull(request: Request, svc: Svc, admin: Admin) -> Response:
    """Install a model, by an operation like any other: one that is under way is joined, and a client that
    leaves ends nothing. From Ollama's library, or by a source as POST /api/models/install takes it."""
    asked = await _read(request, _PULLED)
    wanted = InstallRequest(
        pulls.source_of(asked.wanted),
        pulls.name_of(asked.wanted),
        admin,
        on_own_machine=is_own_user(request, svc),
    )
    op = None
    there = _lookup(svc, None, asked.wanted) is not None
    if not there and not await svc.serving.installs.present(wanted):
        svc.ops.feed.require_room()
        op = (await svc.serving.installs.install(wanted)).operation.id
    if asked.stream is False:
        async for _ in _progress(svc, op, patient=False):
            pass
        return _answer(pulls.SUCCESS)
    return StreamingResponse(_lines(svc, op), media_type=NDJSON.decode())


async def _lines(svc: Services, op: OpId | None) -> AsyncIterator[bytes]:
    """The answer has begun: errors are written into it."""
    try:
        async with aclosing(_progress(svc, op)) as progress:
            async for line in progress:
                yield on_one_line(msgspec.json.encode(line)) + b"\n"
        yield msgspec.json.encode(pulls.SUCCESS) + b"\n"
    except RemudaError as error:
        yield on_one_line(error_body(error)) + b"\n"


async def _progress(
    svc: Services, op: OpId | None, *, patient: bool = True
) -> AsyncGenerator[OllamaProgress, None]:
    """Each change of how far it is, and a sign of life while nothing changes. OllamaPullFailed when it ends
    without the model, or unless `patient` when an attempt has failed. None: it is there."""
    yield pulls.MANIFEST
    told, told_at = pulls.MANIFEST, anyio.current_time()
    async with svc.ops.feed.watched():
        while op is not None:
            news = svc.ops.feed.news
            view = await _view(svc, op)
            if view.finished_at is not None:
                if failed := pulls.failure_of(view):
                    raise failed
                await svc.inference.refresh_models()  # A client that reads of success finds it.
                return
            if not patient and (failed := pulls.tried_in_vain(view)):
                raise failed
            line = pulls.line_of(view)
            if line != told or anyio.current_time() - told_at >= _SIGN_OF_LIFE_S:
                told, told_at = line, anyio.current_time()
                yield line
            with anyio.move_on_after(LOOK_EVERY.total_seconds()):
                await news.wait()


async def _view(svc: Services, op: OpId) -> OpView:
    operations = svc.ops.operations
    return with_steps(await operations.view(op), operations.now(), operations.board)


def _allowed(svc: Services, caller: Caller) -> Mapping[str, RoutedModel]:
    """What this caller can ask for, by name."""
    models = svc.inference.tables.now.models
    if caller is None or not caller.models:
        return models
    return {name: one for name, one in models.items() if {name, one.config.id} & {*caller.models}}


async def _found(svc: Services, caller: Caller, wanted: str) -> tuple[str, RoutedModel]:
    """By its name, or one that means the same. One that was added on another frontend a moment ago is not
    unknown."""
    if found := _lookup(svc, caller, wanted):
        return found
    await svc.inference.refresh_models()
    if found := _lookup(svc, caller, wanted):
        return found
    names: Collection[str] = _allowed(svc, caller)
    hint = did_you_mean(wanted, names, "GET /api/tags lists what there is")
    raise NotFound(f"there is no model {wanted[:100]!r}", hint=hint)


def _lookup(svc: Services, caller: Caller, wanted: str) -> tuple[str, RoutedModel] | None:
    entries = _allowed(svc, caller)
    return next(((name, entries[name]) for name in (wanted, *other_names(wanted)) if name in entries), None)


async def _read(request: Request, decoder: msgspec.json.Decoder[B]) -> B:
    asked = decoded(decoder, await body(request), {})
    if not asked.wanted:
        raise InvalidField("model is missing", "model")
    return asked


def _answer(message: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(message), media_type=JSON)
