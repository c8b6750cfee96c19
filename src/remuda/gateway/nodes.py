"""The node self-service API: what workers call, ours and LocalAI's, guarded by the registration token."""

import structlog
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, RootModel

from remuda.core.errors import Invalid, Unauthorized
from remuda.core.ids import BootId
from remuda.gateway import views
from remuda.gateway.guards import require_token, same_secret
from remuda.gateway.messages import Described, answer, body, gives, read, takes
from remuda.gateway.model_views import model_rows
from remuda.gateway.paths import NodePath
from remuda.gateway.services import Services, Svc
from remuda.host.dialing import far_claim
from remuda.wire import nodes as wire
from remuda.wire.codec import decode

log = structlog.get_logger()
FEATURES = ("report", "machine_id", wire.BUS_TROUBLE_FEATURE)


class ModelRows(RootModel[list[wire.ModelRow]]):
    """The replicas on a node."""


def _gives(model: type[BaseModel], *errors: int, status: int = 200) -> dict[int | str, Described]:
    """Here a missing or wrong token in the header has an envelope of its own."""
    return gives(model, *errors, status=status) | {401: {"model": wire.TokenError | wire.NodeError}}


_FAREWELL = takes(wire.Farewell, required=False)
routes = APIRouter(prefix="/api/node", tags=["node"], dependencies=[Depends(require_token)])


@routes.post(
    "/register",
    status_code=201,
    openapi_extra=takes(wire.RegisterRequest),
    responses=_gives(wire.RegisterReply, 400, 409, status=201),
)
async def register(request: Request, svc: Svc) -> Response:
    """Create or refresh this node. Safe to repeat: the name is the key, the id stays."""
    message = await read(request, wire.RegisterRequest)
    _check_body_token(message.token, svc)
    _check_hosts(message, request)
    admitted = await svc.registry.register(views.candidate(message, svc.entropy, await body(request)))
    node, credentials = admitted.node, admitted.credentials
    return answer(
        wire.RegisterReply(
            id=node.id,
            name=node.name,
            node_type=node.node_type,
            status="healthy" if node.approved else "pending",
            created_at=node.created_at,
            nats_jwt=credentials.jwt if credentials else "",
            nats_user_seed=credentials.seed if credentials else "",
            nats_url=svc.bus_url_for(request.url.hostname or ""),
            remuda=wire.FrontendIdentity(version=svc.version, features=FEATURES),
        ),
        201,
    )


@routes.post(
    "/{node_id}/heartbeat",
    openapi_extra=takes(wire.Heartbeat, required=False),
    responses=_gives(wire.HeartbeatReply, 400, 404),
)
async def heartbeat(node_id: NodePath, request: Request, svc: Svc) -> Response:
    """Still here. A body that cannot be read costs its figures, not the sign of life."""
    sent = await body(request)
    try:
        said = views.beat(node_id, decode(wire.Heartbeat, sent))
    except Invalid as error:
        log.warning("heartbeat_body_ignored", node=node_id, reason=error.message)
        said = views.beat(node_id, wire.Heartbeat())
    await svc.registry.heartbeat(said)
    return answer(wire.HeartbeatReply())


@routes.post(
    "/{node_id}/bus-trouble",
    openapi_extra=takes(wire.BusTrouble),
    responses=_gives(wire.NodeMessage, 400, 404),
)
async def bus_trouble(node_id: NodePath, request: Request, svc: Svc) -> Response:
    """The worker runs, but commands cannot reach it by the bus. Not a heartbeat: the node is unhealthy, with
    the worker's reason, until its next heartbeat."""
    trouble = views.bus_trouble(await read(request, wire.BusTrouble))
    if svc.bus_connected():  # Otherwise the bus is away for all of us, which is no fault of this node's.
        await svc.registry.cut_off(node_id, trouble)
        await svc.serving.fleet_changed()
    return answer(wire.NODE_NOT_COMMANDABLE)


@routes.post("/{node_id}/drain", openapi_extra=_FAREWELL, responses=_gives(wire.NodeMessage, 400, 404))
async def drain(node_id: NodePath, request: Request, svc: Svc) -> Response:
    """Part of this worker's orderly stop; its next registration ends it."""
    await svc.registry.leave(node_id, await _leaving_boot(request))
    await svc.serving.fleet_changed()  # Before it asks whether anything is in flight there.
    return answer(wire.NODE_DRAINING)


@routes.post("/{node_id}/resume", responses=_gives(wire.NodeMessage, 404))
async def resume(node_id: NodePath, svc: Svc) -> Response:
    """Take the worker's own drain back; an admin's stays."""
    await svc.registry.stay(node_id)
    await svc.serving.fleet_changed()
    return answer(wire.NODE_RESUMED)


@routes.post("/{node_id}/deregister", openapi_extra=_FAREWELL, responses=_gives(wire.NodeMessage, 400, 404))
@routes.delete("/{node_id}", responses=_gives(wire.NodeMessage, 400, 404))
async def deregister(node_id: NodePath, request: Request, svc: Svc) -> Response:
    """Goodbye. The row stays, and with it id and approval."""
    await svc.registry.depart(node_id, await _leaving_boot(request))
    return answer(wire.NODE_OFFLINE)


@routes.get("/{node_id}/models", responses=_gives(ModelRows, 404))
async def models(node_id: NodePath, svc: Svc) -> Response:
    """The replicas on this node."""
    await svc.registry.standing(node_id)
    return answer(ModelRows([row for row in await model_rows(svc) if row.node_id == node_id]))


async def _leaving_boot(request: Request) -> BootId | None:
    return BootId((await read(request, wire.Farewell)).boot_id) or None


def _check_hosts(message: wire.RegisterRequest, request: Request) -> None:
    """A node may say that it is at an address of this machine, or of a link, only if it calls from there."""
    server = request.scope.get("server") or ("",)
    source, here = (request.client.host if request.client else ""), str(server[0])
    for field, address in (("address", message.address), ("http_address", message.http_address)):
        host = address.rpartition(":")[0].strip("[]")
        if problem := far_claim(host, source, here):
            raise Invalid(
                f"{field}: {problem}",
                hint="advertise an address under which the frontend reaches the node (--advertise-addr)",
            )


def _check_body_token(token: str, svc: Services) -> None:
    """The contract asks for the token a second time, inside the body."""
    expected = svc.access.registration_token
    if expected is None:
        return
    if not token:
        raise Unauthorized("registration token required")
    if not same_secret(token.encode(), expected.get_secret_value()):
        raise Unauthorized("invalid registration token")
