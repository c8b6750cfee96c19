"""The stream of everything as server-sent events, what of it needs a person, the last hour, and settings."""

from typing import Annotated, Final

import anyio
import structlog
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from remuda.gateway.guards import require_admin
from remuda.gateway.history.series import STEP_S, ChartFigures
from remuda.gateway.messages import NodePath, OpenApiPart, Responses, answer, gives, one_of, refuses
from remuda.gateway.middleware import HEAD_ONLY
from remuda.gateway.services import Services, Svc
from remuda.gateway.shut_out import until_shut_out
from remuda.wire.console import (
    AttentionItems,
    ChartSeries,
    ConsoleChange,
    ConsoleSnapshot,
    ConsoleTrouble,
    SettingItems,
)

log = structlog.get_logger()
STREAM: Final = "text/event-stream"
STALL_S: Final = 30.0  # A console that takes nothing for so long is cut off; it can continue.
_HEAD: Final = [
    (b"content-type", STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_RETRY: Final = b"retry: 1000\n\n"

one_of(ConsoleSnapshot, ConsoleChange, ConsoleTrouble)  # OpenApiPart, though no route answers them alone.

_EVENT: OpenApiPart = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["snapshot", "change", "trouble", "well"]},
        "id": {"type": "string", "description": "Send it as Last-Event-ID to continue after this event."},
        "data": {
            "type": "string",
            "description": "JSON: ConsoleSnapshot, ConsoleChange or ConsoleTrouble; empty with `well`.",
        },
    },
}
_STREAMS: Responses = {200: {"content": {STREAM: {"schema": _EVENT}}}}
LastEvent = Annotated[str, Header(alias="Last-Event-ID", description="The id of the last event seen.")]
StayFor = Annotated[
    float | None,
    Query(alias="wait_s", ge=0, description="How long to stay; 0: only what is there now; none: for ever."),
]

routes = APIRouter(prefix="/api", tags=["console"], dependencies=[Depends(require_admin)])


@routes.get("/events", response_class=Response, responses=_STREAMS | refuses(400, 401, 503))
async def events(request: Request, svc: Svc, place: LastEvent = "", stay_s: StayFor = None) -> Response:
    """Nodes, models, replicas, operations, servers and keys: first all of them, or what changed since the
    last event seen; then each change."""
    svc.console.events.require_room()
    if request.scope.get(HEAD_ONLY):
        return Response(media_type=STREAM)
    return _Stream(request, svc, place, stay_s)


@routes.get("/attention", responses=gives(AttentionItems, 401))
async def attention(svc: Svc) -> Response:
    """What needs a person, problems first, each with the request that would solve it where there is one."""
    return answer(AttentionItems(attention=tuple(await svc.console.attention())))


@routes.get("/series", responses=gives(ChartSeries, 401))
async def fleet_series(svc: Svc) -> Response:
    """The last hour of all nodes together, added up, as the frontends have it in memory."""
    return _series(await svc.console.history.of_fleet())


@routes.get("/nodes/{node_id}/series", responses=gives(ChartSeries, 401, 404))
async def node_series(node_id: NodePath, svc: Svc) -> Response:
    """The last hour of one node: memory, disk, requests and tokens of all frontends."""
    await svc.registry.standing(node_id)
    return _series(svc.console.history.of_node(node_id))


def _series(found: ChartFigures) -> Response:
    times, values, limits = found.times, found.values, found.limits
    return answer(
        ChartSeries(
            step_s=STEP_S,
            times=tuple(times),
            series={name: tuple(one) for name, one in values.items()},
            limits={name: tuple(one) for name, one in limits.items()},
        )
    )


@routes.get("/settings", responses=gives(SettingItems, 401))
async def settings(svc: Svc) -> Response:
    """What the frontend that answers was started with, and where each value comes from; no secrets."""
    return answer(SettingItems(frontend=svc.console.frontend, settings=tuple(svc.console.settings)))


class _Stream(Response):
    """Until the client leaves, reads nothing for too long, or may not read any more."""

    def __init__(self, request: Request, svc: Services, place: str, stay_s: float | None) -> None:
        super().__init__(media_type=STREAM)
        self._request = request
        self._svc = svc
        self._place = place
        self._stay_s = stay_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_left, receive, tasks.cancel_scope)
            tasks.start_soon(self._until_shut_out, tasks.cancel_scope)
            await self._write(send)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(STALL_S, shield=True):
            await send({"type": "http.response.body"})

    async def _write(self, send: Send) -> None:
        try:
            await _send(send, _RETRY)
            async for part in self._svc.console.events.events(self._place, self._stay_s):
                await _send(send, part)
        except TimeoutError:
            log.info("console_cut_off", why=f"it took nothing for {STALL_S:.0f} s")

    async def _until_left(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_shut_out(self, scope: anyio.CancelScope) -> None:
        await until_shut_out(self._request, self._svc)
        scope.cancel()


async def _send(send: Send, part: bytes) -> None:
    with anyio.fail_after(STALL_S):
        await send({"type": "http.response.body", "body": part, "more_body": True})
