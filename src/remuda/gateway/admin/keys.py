"""API keys: made, listed and revoked here. A key's secret is in one answer and nowhere else."""

from fastapi import APIRouter, Depends, Request, Response

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.core.errors import Invalid
from remuda.core.hints import did_you_mean
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, KeyPath, answer, gives, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.wire.admin import KeyRequest, KeyView, KeyViews
from remuda.wire.nodes import NodeMessage

routes = APIRouter(prefix="/api/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(KeyViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_keys(svc: Svc) -> Response:
    """Active keys, without their secrets."""
    await svc.keyring.refresh()
    return answer(KeyViews([_view(key) for key in svc.keyring.listed()]))


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
    if wanted.models and scope is not KeyScope.INFERENCE:
        raise Invalid(
            f"models: a key of the scope {scope} is not limited to models",
            hint="leave them out, or use the scope inference",
        )
    secret, key = await svc.keyring.create(wanted.name, scope, wanted.models)
    made = _view(key).model_copy(update={"key": secret, "warnings": _warnings(key, svc)})
    return answer(made, 201)


@routes.delete("/{key_id}", responses=gives(NodeMessage, 401, 404))
async def revoke_key(key_id: KeyPath, svc: Svc) -> Response:
    """This key stops working: here at once, on other frontends within a second."""
    key = await svc.keyring.revoke(key_id)
    return answer(NodeMessage(message=f"key {key.name} revoked"))


def _warnings(key: ApiKey, svc: Services) -> tuple[str, ...]:
    """Keys may come before their models; but a name that is misspelled opens nothing, ever."""
    known = svc.inference.tables.now.models
    unknown = (name for name in key.models if name not in known)
    return tuple(
        f"there is no model {name!r} now; {did_you_mean(name, known, 'the key opens it as soon as there is')}"
        for name in unknown
    )


def _view(key: ApiKey) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scope=key.scope,
        hint=key.hint,
        created_at=key.created_at,
        models=key.models,
    )
