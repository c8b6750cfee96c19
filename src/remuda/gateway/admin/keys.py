"""API keys: made, listed, changed and revoked here. A key's secret is in one answer and nowhere else."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.core.errors import Invalid
from remuda.core.hints import did_you_mean
from remuda.gateway.access_views import TERMS, key_view
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, KeyPath, answer, gives, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.wire.admin import KeyPatch, KeyRequest, KeyView, KeyViews
from remuda.wire.nodes import NodeMessage

routes = APIRouter(prefix="/api/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(KeyViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_keys(svc: Svc) -> Response:
    """Keys that were not revoked, without their secrets."""
    await svc.keyring.note_used()
    await svc.keyring.refresh()
    return answer(KeyViews([key_view(key, svc.keyring.now()) for key in svc.keyring.listed()]))


@routes.post(
    "",
    status_code=201,
    openapi_extra=takes(KeyRequest),
    responses=gives(KeyView, 400, 401, 409, status=201),
)
async def create_key(request: Request, svc: Svc) -> Response:
    """A new key; its secret is shown in this answer only."""
    wanted = await read_known(request, KeyRequest)
    scope = KeyScope(wanted.scope)
    terms = KeyTerms(**{name: getattr(wanted, name) for name in TERMS})
    _check(scope, wanted.models, terms)
    if wanted.expires_at is not None and wanted.expires_at <= svc.keyring.now():
        raise _already_over(wanted.expires_at)
    secret, key = await svc.keyring.create(wanted.name, scope, wanted.models, terms)
    made = key_view(key, svc.keyring.now()).model_copy(
        update={"key": secret, "warnings": _warnings(key, svc)}
    )
    return answer(made, 201)


@routes.patch("/{key_id}", openapi_extra=takes(KeyPatch), responses=gives(KeyView, 400, 401, 404))
async def edit_key(key_id: KeyPath, request: Request, svc: Svc) -> Response:
    """Change what a key may take, pause or resume it: here at once, on other frontends within a second."""
    wanted = await read_known(request, KeyPatch)
    if wanted.expires_at is not None and wanted.never_expires:
        raise Invalid("expires_at and never_expires exclude each other", hint="leave one of the two out")
    if wanted.expires_at is not None and wanted.expires_at <= svc.keyring.now():
        raise _already_over(wanted.expires_at)
    key = await svc.keyring.edit(key_id, partial(_edited, wanted))
    return answer(key_view(key, svc.keyring.now()).model_copy(update={"warnings": _warnings(key, svc)}))


@routes.delete("/{key_id}", responses=gives(NodeMessage, 401, 404))
async def revoke_key(key_id: KeyPath, svc: Svc) -> Response:
    """This key stops working: here at once, on other frontends within a second."""
    key = await svc.keyring.revoke(key_id)
    return answer(NodeMessage(message=f"key {key.name} revoked"))


def _edited(wanted: KeyPatch, key: ApiKey) -> ApiKey:
    given = {name: value for name in TERMS if (value := getattr(wanted, name)) is not None}
    if wanted.never_expires:
        given["expires_at"] = None
    models = key.models if wanted.models is None else wanted.models
    paused = key.paused if wanted.paused is None else wanted.paused
    edited = replace(key, models=models, paused=paused, terms=replace(key.terms, **given))
    _check(key.scope, edited.models, edited.terms)
    return edited


def _check(scope: KeyScope, models: Sequence[str], terms: KeyTerms) -> None:
    """Invalid for what would have no effect."""
    if models and scope is not KeyScope.INFERENCE:
        raise Invalid(
            f"models: a key of the scope {scope} is not limited to models",
            hint="leave them out, or use the scope inference",
        )
    if terms.limited and scope is KeyScope.READ:
        raise Invalid(
            "a key of the scope read uses no models, so it has no limits of requests and tokens",
            hint="leave the limits out, or use the scope inference",
        )


def _already_over(expiry: datetime) -> Invalid:
    return Invalid(
        f"expires_at: {expiry:%Y-%m-%d %H:%M} UTC is in the past",
        hint="name a later time, or pause or revoke the key",
    )


def _warnings(key: ApiKey, svc: Services) -> tuple[str, ...]:
    """Keys may come before their models; but a name that is misspelled opens nothing, ever."""
    known = svc.inference.tables.now.models
    unknown = (name for name in key.models if name not in known)
    return tuple(
        f"there is no model {name!r} now; {did_you_mean(name, known, 'the key opens it as soon as there is')}"
        for name in unknown
    )
