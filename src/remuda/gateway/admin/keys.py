"""API keys: made, listed and revoked here. A key's secret is in one answer and nowhere else."""

from fastapi import APIRouter, Depends, Request, Response

from remuda.accounts.keys import ApiKey, Role
from remuda.core.errors import Invalid
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import answer, gives, read, takes
from remuda.gateway.paths import KeyPath
from remuda.gateway.services import Svc
from remuda.wire.admin import KeyRequest, KeyView, KeyViews
from remuda.wire.nodes import NodeMessage

routes = APIRouter(prefix="/api/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(KeyViews, 401))
async def list_keys(svc: Svc) -> Response:
    """The keys in force, without their secrets."""
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
    wanted = await read(request, KeyRequest)
    role = Role(wanted.role)
    if wanted.models and role is Role.ADMIN:
        raise Invalid(
            "models: an admin's key is for everything", hint="leave them out, or ask for a user's key"
        )
    secret, key = await svc.keyring.create(wanted.name, role, wanted.models)
    return answer(_view(key, secret), 201)


@routes.delete("/{key_id}", responses=gives(NodeMessage, 401, 404))
async def revoke_key(key_id: KeyPath, svc: Svc) -> Response:
    """This key stops working: here at once, on other frontends within a second."""
    key = await svc.keyring.revoke(key_id)
    return answer(NodeMessage(message=f"key {key.name} revoked"))


def _view(key: ApiKey, secret: str = "") -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        role=key.role,
        hint=key.hint,
        created_at=key.created_at,
        models=key.models,
        key=secret,
    )
