"""Models that can be installed by name: searched, and shown one by one with what they amount to."""

from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from remuda.core.errors import RemudaError
from remuda.gallery.model_entries import FoundModel, search
from remuda.gateway import model_views
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, ModelPath, answer, gives
from remuda.gateway.services import Services, Svc
from remuda.wire.model_galleries import GalleryModels, GalleryModelView, GalleryTrouble
from remuda.wire.serving import ModelFileView, ModelFits

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])
_LIMIT = 100
_LIMIT_MAX = 10_000


@routes.get("/api/galleries/models", responses=gives(GalleryModels, 400, 401), dependencies=[KNOWN_FILTERS])
async def gallery_models(
    svc: Svc,
    term: Annotated[str, Query(max_length=200, description="All of these words.")] = "",
    limit: Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="At most so many.")] = _LIMIT,
) -> Response:
    """Models of the galleries that have all words in their names, tags or description."""
    readings = await svc.serving.galleries.readings()
    installed = await _installed(svc)
    found = search(readings, term)
    return answer(
        GalleryModels(
            models=tuple(_view(one, installed) for one in found[:limit]),
            total=len(found),
            unread=tuple(
                GalleryTrouble(gallery=one.gallery.name, reason=one.trouble)
                for one in readings
                if one.trouble
            ),
        )
    )


@routes.get("/api/galleries/models/{model:path}/fits", responses=gives(ModelFits, 400, 401, 404))
async def gallery_model_fits(model: ModelPath, svc: Svc) -> Response:
    """Whether each node could take a model that is not installed yet, with placement's own reasons. Its
    source is asked for its size, which takes seconds at most."""
    found = await svc.serving.galleries.find(model)
    prospect = await svc.serving.prospects.fits(found.id)
    return answer(model_views.model_fits(prospect.fit, prospect.size_unknown))


@routes.get("/api/galleries/models/{model:path}", responses=gives(GalleryModelView, 401, 404))
async def gallery_model(model: ModelPath, svc: Svc) -> Response:
    """One model of the galleries, by its name, an alias or `gallery@name`, with the configuration and files
    that its entry amounts to."""
    found = await svc.serving.galleries.find(model)
    view = _view(found, await _installed(svc))
    if found.entry.source:
        return answer(view)
    try:
        made = await svc.serving.galleries.composed(found)
    except RemudaError as error:
        return answer(view.model_copy(update={"problem": error.public_text}))
    files = tuple(ModelFileView(path=one.filename, source=one.uri, sha256=one.sha256) for one in made.files)
    words = {"description": made.description, "license": made.license}
    return answer(view.model_copy(update={"config": made.config, "files": files, **words}))


async def _installed(svc: Services) -> Collection[str]:
    return {one.config.id for one in await svc.serving.models.configured()}


def _view(found: FoundModel, installed: Collection[str]) -> GalleryModelView:
    entry = found.entry
    return GalleryModelView(
        id=found.id,
        name=entry.name,
        gallery=found.gallery.name,
        aliases=entry.aliases,
        description=entry.description,
        license=entry.license,
        tags=entry.tags,
        urls=entry.urls,
        backend=entry.backend,
        source=entry.source,
        quantisation=entry.quantisation,
        variants=entry.variants,
        installed=entry.name in installed,
    )
