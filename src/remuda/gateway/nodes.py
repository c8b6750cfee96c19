"""The node self-service API: what workers call, ours and LocalAI's. The registration token lets them
register; from then on each speaks only for itself.

Heartbeats, the most frequent request (a thousand nodes send a hundred a second), have a lane past the
routing, to the same guard and the same function.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, RootModel
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.core import limits
from remuda.core.errors import Invalid, Unauthorized
from remuda.core.ids import BootId, NodeId
from remuda.core.reach import host_and_port
from remuda.fleet.identity import CallerIdentity
from remuda.fleet.model import Invite
from remuda.gateway import node_views
from remuda.gateway.guards import ByNode, TokenRefused, node_caller, same_secret
from remuda.gateway.messages import NodePath, Responses, answer, body, gives, one_of, read, refuses, takes
from remuda.gateway.model_views import model_rows
from remuda.gateway.services import Services, Svc
from remuda.host.outbound import far_claim
from remuda.wire import nodes as wire
from remuda.wire.codec import decode

log = structlog.get_logger()
FEATURES = ("report", "machine_id", wire.BUS_TROUBLE_FEATURE, wire.NODE_SECRET)


class ModelRows(RootModel[list[wire.ModelRow]]):
    """The replicas on a node."""


def _gives(model: type[BaseModel], *errors: int, status: int = 200) -> Responses:
    """Here a missing or wrong token in the header has an envelope of its own."""
    return gives(model, *errors, status=status) | {401: one_of(wire.TokenError, wire.NodeError)}


_TOKEN_REFUSED: Responses = {401: one_of(wire.TokenError)}
_DEPARTURE = takes(wire.Departure, required=False)
routes = APIRouter(prefix="/api/node", tags=["node"], dependencies=[Depends(node_caller)])


@routes.post(
    "/register",
    status_code=201,
    openapi_extra=takes(wire.RegisterRequest),
    responses=_gives(wire.RegisterReply, 400, 403, 409, 503, status=201),
)
async def register(request: Request, svc: Svc, caller: ByNode) -> Response:
    """Create or refresh this node. Safe to repeat: a node that is recognised keeps its name and its id."""
    message = await read(request, wire.RegisterRequest)
    invite = _check_tokens(message, caller, svc)
    _check_hosts(message, request, svc.access.claimed_source(request))
    candidate = node_views.candidate(message, svc.entropy, await body(request), caller.source, invite)
    admitted = await svc.registry.register(candidate)
    node, credentials, tokens = admitted.node, admitted.credentials, admitted.tokens
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
            worker_tokens=wire.WorkerTokens(http=tokens.http, grpc=tokens.grpc) if tokens else None,
            remuda=wire.FrontendIdentity(version=svc.version, features=FEATURES),
        ),
        201,
    )


@routes.get("/token", status_code=204, response_class=Response, responses=refuses() | _TOKEN_REFUSED)
async def check_token(caller: ByNode) -> Response:
    """Whether this is the registration token; nothing is changed. A machine that joins asks this before it
    installs anything."""
    if not caller.shared:
        raise TokenRefused(wire.TOKEN_WRONG)
    return Response(status_code=204)


@routes.post(
    "/{node_id}/heartbeat",
    openapi_extra=takes(wire.Heartbeat, required=False),
    responses=_gives(wire.HeartbeatReply, 400, 404),
)
async def heartbeat(node_id: NodePath, request: Request, svc: Svc, caller: ByNode) -> Response:
    """Still here. A body that cannot be read costs its figures, not the sign of life."""
    sent, speaker = await body(request), _speaking(caller, svc)
    try:
        beat = node_views.beat(node_id, speaker, _decoded(sent))
    except Invalid as error:
        log.warning("heartbeat_body_ignored", node=node_id, reason=error.message)
        beat = node_views.beat(node_id, speaker, wire.Heartbeat())
    with _as_token_error(caller):
        await svc.registry.heartbeat(beat)
    return answer(wire.HeartbeatReply(uncommandable=svc.uncommandable(node_id)))


def _decoded(sent: bytes) -> wire.Heartbeat:
    return decode(wire.Heartbeat, sent, containers_max=limits.BODY_CONTAINERS_MAX)


@routes.post(
    "/{node_id}/bus-trouble",
    openapi_extra=takes(wire.BusTrouble),
    responses=_gives(wire.NodeMessage, 400, 404),
)
async def bus_trouble(node_id: NodePath, request: Request, svc: Svc, caller: ByNode) -> Response:
    """The worker runs, but commands cannot reach it by the bus. Not a heartbeat: the node is unhealthy, with
    the worker's reason, until its next heartbeat. It counts as heard: the node is not offline."""
    host = request.url.hostname or ""
    trouble = node_views.bus_trouble(await read(request, wire.BusTrouble), svc.bus_url_for(host), host)
    if svc.bus_connected():  # Otherwise the bus is away for all of us, which is no fault of this node's.
        with _as_token_error(caller):
            await svc.registry.cut_off(node_id, _speaking(caller, svc), trouble)
        await svc.serving.routed.fleet_changed()
    return answer(wire.NODE_NOT_COMMANDABLE)


@routes.post("/{node_id}/drain", openapi_extra=_DEPARTURE, responses=_gives(wire.NodeMessage, 400, 404))
async def drain(node_id: NodePath, request: Request, svc: Svc, caller: ByNode) -> Response:
    """Part of this worker's orderly stop; its next registration ends it."""
    boot, _ = await _departure(request)
    with _as_token_error(caller):
        await svc.registry.leave(node_id, _speaking(caller, svc), boot)
    await svc.serving.routed.fleet_changed()  # Before it asks whether anything is in flight there.
    return answer(wire.NODE_DRAINING)


@routes.post("/{node_id}/resume", responses=_gives(wire.NodeMessage, 404))
async def resume(node_id: NodePath, svc: Svc, caller: ByNode) -> Response:
    """Take the worker's own drain back; an admin's stays."""
    with _as_token_error(caller):
        await svc.registry.stay(node_id, _speaking(caller, svc))
    await svc.serving.routed.fleet_changed()
    return answer(wire.NODE_RESUMED)


@routes.post("/{node_id}/deregister", openapi_extra=_DEPARTURE, responses=_gives(wire.NodeMessage, 400, 404))
@routes.delete("/{node_id}", responses=_gives(wire.NodeMessage, 400, 404))
async def deregister(node_id: NodePath, request: Request, svc: Svc, caller: ByNode) -> Response:
    """Goodbye. The row stays, and with it id and approval."""
    boot, for_good = await _departure(request)
    with _as_token_error(caller):
        await svc.registry.depart(node_id, _speaking(caller, svc), boot, for_good=for_good)
    return answer(wire.NODE_OFFLINE)


@routes.get("/{node_id}/models", responses=_gives(ModelRows, 404))
async def models(node_id: NodePath, svc: Svc, caller: ByNode) -> Response:
    """The replicas on this node."""
    with _as_token_error(caller):
        await svc.registry.identify(node_id, _speaking(caller, svc))
    return answer(ModelRows([row for row in await model_rows(svc) if row.node_id == node_id]))


async def _departure(request: Request) -> tuple[BootId | None, bool]:
    """Which boot leaves, if it says so, and whether it leaves for good."""
    departure = await read(request, wire.Departure)
    return BootId(departure.boot_id) or None, departure.for_good


def _check_hosts(message: wire.RegisterRequest, request: Request, source: str) -> None:
    """A node may say that it is at an address of this machine, or of a link, only if it calls from there."""
    server = request.scope.get("server") or ("",)
    here = str(server[0])
    for field, address in (("address", message.address), ("http_address", message.http_address)):
        parts = host_and_port(address)  # None: not an address that is dialled.
        if parts is not None and (problem := far_claim(parts[0], source, here)):
            raise Invalid(
                f"{field}: {problem}",
                hint=f"set {_setting(message, field)} to an address that the frontend can reach",
            )


def _setting(message: wire.RegisterRequest, field: str) -> str:
    flag = "--advertise-addr" if field == "address" else "--advertise-http-addr"
    ours = message.remuda is not None and bool(message.remuda.version)
    return flag if ours else f"LOCALAI_{flag.removeprefix('--').replace('-', '_').upper()}"


def _speaking(caller: CallerIdentity, svc: Services) -> CallerIdentity:
    """The caller as the node it speaks of: where nodes must prove who they are, the shared token does not."""
    return caller if svc.access.address_only else replace(caller, shared=False)


@contextmanager
def _as_token_error(caller: CallerIdentity) -> Iterator[None]:
    """A node that is not the caller's own is refused as a wrong token is, in the contract's envelope."""
    try:
        yield
    except Unauthorized as error:
        log.info("node_call_refused", reason=error.message)
        raise TokenRefused(wire.TOKEN_NOT_ENOUGH if caller.shared else wire.TOKEN_WRONG) from error


def _check_tokens(message: wire.RegisterRequest, caller: CallerIdentity, svc: Services) -> Invite | None:
    """The contract asks for the token a second time, inside the body: it is the invite to this name, or the
    registration token that the header has too."""
    invite = svc.tokens.invited(message.name, message.token)
    if invite is not None and hmac.compare_digest(invite.token_hash, caller.bearer_hash):
        return invite
    expected = svc.access.registration_token
    if not caller.shared:
        raise TokenRefused(wire.TOKEN_WRONG)
    if expected is None:
        return None
    if not message.token:
        raise Unauthorized("registration token required")
    if not same_secret(message.token.encode(), expected.get_secret_value()):
        raise Unauthorized("invalid registration token")
    return None


_PATH: Final = re.compile(r"/api/node/([0-9A-Za-z_-]+)/heartbeat")  # Ids as they are given out.
_ROUTE: Final = next(
    route for route in routes.routes if isinstance(route, APIRoute) and route.endpoint is heartbeat
)

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]


class HeartbeatLane:
    """Everything else passes on to `app`. `failed` makes answers of exceptions, as it does for all routes."""

    def __init__(self, app: ASGIApp, services: Services, failed: ErrorHandler) -> None:
        self._app = app
        self._services = services
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beating = scope["type"] == "http" and scope["method"] == "POST" and _PATH.fullmatch(scope["path"])
        if not beating:
            await self._app(scope, receive, send)
            return
        scope["route"] = _ROUTE  # For the figures.
        request = Request(scope, receive)
        try:
            caller = await node_caller(request, self._services)
            response = await heartbeat(NodeId(beating[1]), request, self._services, caller)
        except Exception as error:
            response = await self._failed(request, error)
        await response(scope, receive, send)
