"""Servers that run without us: adopted, changed, looked for and let go here. Their keys are in no answer."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from remuda.core.prices import Money, parse_amount, parse_price
from remuda.gateway.access_views import server_view
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, answer, gives, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.servers.model import ServerKind
from remuda.servers.service import ServerState, ServerWish
from remuda.wire.nodes import NodeMessage
from remuda.wire.servers import (
    FoundServer,
    FoundServers,
    ScanRequest,
    ServerPatch,
    ServerRequest,
    ServerView,
    ServerViews,
)

routes = APIRouter(prefix="/api/servers", tags=["servers"], dependencies=[Depends(require_admin)])
ServerName = Annotated[str, Path(max_length=100)]


@routes.get("", responses=gives(ServerViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_servers(svc: Svc) -> Response:
    """Servers that were adopted, as this frontend sees them now."""
    return answer(ServerViews(servers=tuple(_view(one, svc) for one in await svc.serving.servers.listed())))


@routes.post(
    "",
    status_code=201,
    openapi_extra=takes(ServerRequest),
    responses=gives(ServerView, 400, 401, 409, 502, status=201),
)
async def add_server(request: Request, svc: Svc) -> Response:
    """Adopt a server: it is asked for its models first, and refused if it does not tell them."""
    body = await read_known(request, ServerRequest)
    wish = ServerWish(
        body.url,
        body.name or None,
        None if body.kind == "auto" else ServerKind(body.kind),
        body.key or None,
        {model: parse_price(price) for model, price in body.prices.items()},
        body.free,
        _amount(body.budget),
        body.parallel,
        body.max_tokens,
        body.unseen,
    )
    return answer(_view(await svc.serving.servers.add(wish), svc), 201)


@routes.post("/scan", openapi_extra=takes(ScanRequest), responses=gives(FoundServers, 400, 401))
async def scan_for_servers(request: Request, svc: Svc) -> Response:
    """Look for servers at the ports where they usually are. Nothing is adopted by this."""
    body = await read_known(request, ScanRequest)
    known = {
        str(one.adopted.server.url): one.adopted.server.name for one in await svc.serving.servers.listed()
    }
    found = [
        FoundServer(
            url=str(one.url),
            usual=one.usual,
            kind="" if one.kind is None else one.kind.value,
            models=one.models,
            reason=one.reason,
            adopted=known.get(str(one.url), ""),
        )
        for one in await svc.serving.servers.scan(body.hosts)
    ]
    return answer(FoundServers(servers=tuple(found)))


@routes.get("/{name}", responses=gives(ServerView, 401, 404))
async def get_server(name: ServerName, svc: Svc) -> Response:
    """One server with its models, and with what it has cost this month."""
    return answer(_view(await svc.serving.servers.get(name), svc))


@routes.patch(
    "/{name}", openapi_extra=takes(ServerPatch), responses=gives(ServerView, 400, 401, 404, 409, 502)
)
async def edit_server(name: ServerName, request: Request, svc: Svc) -> Response:
    """Change a server: in force here at once, on other frontends within seconds."""
    body = await read_known(request, ServerPatch)
    prices = body.prices
    wish = ServerWish(
        body.url,
        None,
        None if body.kind is None else ServerKind(body.kind),
        body.key,
        None if prices is None else {model: parse_price(price) for model, price in prices.items()},
        body.free,
        None if body.budget is None else _amount(body.budget),
        body.parallel,
        body.max_tokens,
        body.unseen,
    )
    return answer(_view(await svc.serving.servers.edit(name, wish), svc))


@routes.delete("/{name}", responses=gives(NodeMessage, 401, 404))
async def remove_server(name: ServerName, svc: Svc) -> Response:
    """Let a server go: no request is sent there any more."""
    removed = await svc.serving.servers.remove(name)
    return answer(NodeMessage(message=f"server {removed.name} removed"))


def _amount(text: str) -> Money:
    return parse_amount(text) if text else 0


def _view(state: ServerState, svc: Services) -> ServerView:
    return server_view(state, svc.inference.tables.now, svc.serving.in_flight)
