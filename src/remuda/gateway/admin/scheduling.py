"""How many replicas of models are wanted, and where: as admins declare it by the contract, and shown."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Invalid
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import (
    KNOWN_FILTERS,
    ModelPath,
    answer,
    gives,
    read,
    refuses,
    takes,
    unknown_field,
)
from remuda.gateway.model_views import replicas_of, wanted_replicas
from remuda.gateway.node_views import check_labels
from remuda.gateway.services import Svc
from remuda.models import keep_alive
from remuda.models.config import ModelConfig
from remuda.scheduler.scheduling import ModelScheduling, SchedulingTerms, effective
from remuda.scheduler.scheduling_edits import Scheduled
from remuda.wire.scheduling import (
    ModelScheduled,
    ModelsScheduled,
    SchedulingBody,
    SchedulingRow,
    SchedulingRows,
)

routes = APIRouter(tags=["models"], dependencies=[Depends(require_admin)])


@routes.get("/api/scheduling", responses=gives(ModelsScheduled, 400, 401, 404), dependencies=[KNOWN_FILTERS])
async def list_scheduled(svc: Svc, model: Annotated[str, Query(max_length=1024)] = "") -> Response:
    """How each model is scheduled, by whose word, and how many replicas it has; or one model. Also what is
    declared for models that are not there yet."""
    scheduling = svc.serving.scheduling
    found = list(map(_scheduled, await scheduling.scheduled(model)))
    later = (one for one in await scheduling.unconfigured() if model in ("", one.model))
    return answer(ModelsScheduled(models=(*found, *map(_unconfigured, later))))


@routes.get("/api/nodes/scheduling", responses=gives(SchedulingRows, 401))
async def list_scheduling(svc: Svc) -> Response:
    """What admins have declared. Models that their YAML alone schedules are not here."""
    scheduling = svc.serving.scheduling
    unconfigured = await scheduling.unconfigured()
    return answer(SchedulingRows(tuple(_row(one, unconfigured) for one in await scheduling.stored())))


@routes.get("/api/nodes/scheduling/{model:path}", responses=gives(SchedulingRow, 401, 404))
async def one_scheduling(model: ModelPath, svc: Svc) -> Response:
    """What an admin has declared for this model."""
    scheduling = svc.serving.scheduling
    return answer(_row(await scheduling.one(model), await scheduling.unconfigured()))


@routes.post(
    "/api/nodes/scheduling",
    openapi_extra=takes(SchedulingBody),
    responses=gives(SchedulingRow, 400, 401),
)
async def declare_scheduling(request: Request, svc: Svc) -> Response:
    """Declare what is wanted of a model's replicas, which counts more than its YAML. The model may be added
    later, of which a warning tells, as of a field that is not known."""
    body = await read(request, SchedulingBody)
    change = declared(body)
    scheduling = svc.serving.scheduling
    put = await scheduling.declare(body.model_name, change)
    row = _row(put, await scheduling.unconfigured())
    warnings = (await unknown_field(request, SchedulingBody), row.warning)
    return answer(row.model_copy(update={"warning": "; ".join(filter(None, warnings))}))


@routes.delete(
    "/api/nodes/scheduling/{model:path}",
    status_code=204,
    response_class=Response,
    responses=refuses(401, 404, 503),
)
async def withdraw_scheduling(model: ModelPath, svc: Svc) -> Response:
    """Its YAML counts again."""
    await svc.serving.scheduling.withdraw(model)
    return Response(status_code=204)


def declared(body: SchedulingBody) -> Callable[[SchedulingTerms], SchedulingTerms]:
    """What it makes of the terms there are. Invalid, naming the field, for what cannot be."""
    check_labels(body.node_selector)
    kept = None if body.keep_alive is None else _keep_alive(body.keep_alive)

    def change(before: SchedulingTerms) -> SchedulingTerms:
        return _terms(body, before if body.keep_alive is None else replace(before, keep_alive=kept))

    return change


def _keep_alive(text: str) -> timedelta | None:
    try:
        return keep_alive.parse(text) if text else None
    except ValueError:
        raise Invalid(f"keep_alive: {text[:40]!r} is not {keep_alive.ACCEPTED}", param="keep_alive") from None


def _terms(body: SchedulingBody, before: SchedulingTerms) -> SchedulingTerms:
    said = {
        name: value
        for name in (
            "route_policy",
            "balance_abs_threshold",
            "balance_rel_threshold",
            "min_prefix_match",
            "pinned",
        )
        if (value := getattr(body, name)) is not None
    }
    return replace(
        before,
        min_replicas=body.min_replicas,
        max_replicas=body.max_replicas,
        everywhere=body.spread_all,
        selector=dict(sorted(body.node_selector.items())),
        **said,
    )


def _row(one: ModelScheduling, unconfigured: Sequence[ModelScheduling]) -> SchedulingRow:
    terms, cooldown = one.terms, one.cooldown
    absent = any(one.model == other.model for other in unconfigured)
    return SchedulingRow(
        id=one.id,
        model_name=one.model,
        node_selector=json.dumps(dict(terms.selector), separators=(",", ":")) if terms.selector else "",
        min_replicas=terms.min_replicas,
        max_replicas=terms.max_replicas,
        spread_all=terms.everywhere,
        route_policy=terms.route_policy,
        balance_abs_threshold=terms.balance_abs_threshold,
        balance_rel_threshold=terms.balance_rel_threshold,
        min_prefix_match=terms.min_prefix_match,
        unsatisfiable_until=None if cooldown is None else cooldown.until,
        unsatisfiable_ticks=0 if cooldown is None else cooldown.attempts,
        created_at=one.created_at,
        updated_at=one.updated_at,
        pinned=terms.pinned,
        keep_alive="" if terms.keep_alive is None else keep_alive.render(terms.keep_alive),
        unsatisfiable_why="" if cooldown is None else cooldown.why,
        warning=f"there is no model {one.model!r} yet: this counts once it is added" if absent else "",
    )


def _unconfigured(one: ModelScheduling) -> ModelScheduled:
    config = effective(ModelConfig(name="later"), one.terms)
    return ModelScheduled(**dict(replicas_of(config, "declared")), model=one.model, absent=True)


def _scheduled(one: Scheduled) -> ModelScheduled:
    return ModelScheduled(
        **dict(wanted_replicas(one.model)),
        model=one.model.config.id,
        loaded=one.loaded,
        on_their_way=one.on_their_way,
        waiting=one.waiting,
        not_counted=one.not_counted,
    )
