"""Logs of backends, through the frontend: lists and lines as the contract has them, live lines on a WebSocket
or as server-sent events."""

from functools import partial
from typing import Annotated, Literal

import anyio
import structlog
from fastapi import APIRouter, Depends, Query, Request, Response, WebSocket
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.fleet.model import Node
from remuda.gateway.admin.ops_api import STREAM
from remuda.gateway.guards import admin_name, require_admin
from remuda.gateway.messages import (
    ModelPath,
    NodePath,
    OpenApiPart,
    answer,
    gives,
    model_name,
    node_id_text,
    refusal,
)
from remuda.gateway.middleware import HEAD_ONLY
from remuda.gateway.services import Services, Svc
from remuda.gateway.shut_out import ShutOut, unless_shut_out
from remuda.wire.codec import decode, encode
from remuda.wire.logs import LogEnd, LogFrame, LogLine, LogLines, LogNames

log = structlog.get_logger()
_HEADERS = [
    (b"content-type", STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_NOTHING = b": nothing new\n\n"
_CLOSE_REASON_BYTES_MAX = 120  # A close frame holds 123.
_STOPPING = LogEnd(code="unavailable", message="this frontend is stopping")
_EVENTS: OpenApiPart = {STREAM: {"schema": {"type": "string"}}}

routes = APIRouter(prefix="/api", tags=["nodes"], dependencies=[Depends(require_admin)])
sockets = APIRouter()

Tail = Annotated[int | None, Query(ge=0, le=limits.LOG_TAIL_MAX, description="Only the last so many lines.")]
StreamChoice = Annotated[
    Literal["stdout", "stderr"] | None, Query(description="Only what was written there.")
]
Follow = Annotated[
    bool, Query(description="Stay, and send each line as an event `line`; an event `end` says why it ends.")
]


@routes.get("/nodes/{node_id}/backend-logs", responses=gives(LogNames, 401, 404, 409, 502))
async def log_names(node_id: NodePath, svc: Svc) -> Response:
    """The models that have logs on this node."""
    return answer(await svc.logs.names((await svc.registry.standing(node_id)).node))


_LINES = gives(LogLines, 400, 401, 404, 409, 502)
_LINES[200]["content"] |= _EVENTS


@routes.get("/nodes/{node_id}/backend-logs/{model:path}", responses=_LINES)
async def log_lines(
    node_id: NodePath,
    model: ModelPath,
    request: Request,
    svc: Svc,
    tail: Tail = None,
    stream: StreamChoice = None,
    follow: Follow = False,
) -> Response:
    """The newest lines of a model's processes there, or of one process key (`model#replica`)."""
    node = (await svc.registry.standing(node_id)).node
    if follow and not request.scope.get(HEAD_ONLY):
        return FollowedLog(request, svc, node, model, tail, stream)
    return answer(await svc.logs.lines(node, model, tail, stream))


@sockets.websocket("/ws/nodes/{node_id}/backend-logs/{model:path}")
async def log_socket(websocket: WebSocket, node_id: str, model: str) -> None:
    """The worker's frames, as they come."""
    svc: Services = websocket.app.state.services
    try:
        admin_name(websocket, svc)
        node = (await svc.registry.standing(node_id_text(node_id))).node
        await _forward(websocket, svc, node, model_name(model))
    except RemudaError as error:
        log.info("log_socket_refused", node=node_id, code=error.code, reason=error.message)
        await websocket.send_denial_response(refusal(error, websocket.url.path))


async def _forward(websocket: WebSocket, svc: Services, node: Node, model: str) -> None:
    """Accepted with the worker's first frame: until then a refusal can still be answered in words."""
    accepted, problem = False, None

    async def tell(frame: str | None) -> None:
        nonlocal accepted
        if not accepted:
            await websocket.accept()
            accepted = True
            tasks.start_soon(_until_left, websocket, tasks.cancel_scope)
        if frame is not None:
            await websocket.send_text(frame)

    async with anyio.create_task_group() as tasks:
        try:
            await unless_shut_out(websocket, svc, partial(svc.logs.follow, node, model, tell))
        except WebSocketDisconnect:
            accepted = False
        except RemudaError as error:
            problem = error
        if accepted:
            code, why = _closing(problem)
            await websocket.close(code, why.encode()[:_CLOSE_REASON_BYTES_MAX].decode(errors="ignore"))
        tasks.cancel_scope.cancel()
    if problem is not None and not accepted:
        raise problem


def _closing(problem: RemudaError | None) -> tuple[int, str]:
    """How a socket is closed, and the words."""
    if problem is None:
        return 1012, _STOPPING.message
    return 1008 if isinstance(problem, ShutOut) else 1014, problem.message


async def _until_left(websocket: WebSocket, scope: anyio.CancelScope) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    scope.cancel()


class FollowedLog(Response):
    """Server-sent events. The answer begins with the worker's first frame."""

    def __init__(
        self, request: Request, svc: Services, node: Node, model: str, tail: int | None, stream: str | None
    ) -> None:
        super().__init__(media_type=STREAM)
        self._follow = partial(svc.logs.follow, node, model)
        self._while_allowed = partial(unless_shut_out, request, svc)
        self._tail = tail
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem: RemudaError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_disconnected, receive, tasks.cancel_scope)
            problem = await self._stream_to(send)
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem

    async def _stream_to(self, send: Send) -> RemudaError | None:
        """Answers what went wrong before the answer began; later that is its last event."""
        begun = False

        async def tell(frame: str | None) -> None:
            nonlocal begun
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                begun = True
            await _send(send, _NOTHING if frame is None else self._events(frame))

        end = _STOPPING
        try:
            await self._while_allowed(partial(self._follow, tell))
        except RemudaError as error:
            if not begun:
                return error
            end = LogEnd(code=error.code, message=error.public_text)
        await tell(None)
        await _send(send, _event("end", encode(end)))
        await send({"type": "http.response.body"})
        return None

    def _events(self, frame: str) -> bytes:
        entry = decode(LogFrame, frame.encode(), bytes_max=limits.NODE_LOGS_BYTES_MAX)
        lines = [line for line in entry.lines if self._wanted(line)]
        if self._tail is not None:
            lines = lines[max(0, len(lines) - self._tail) :]
        if entry.line is not None and self._wanted(entry.line):
            lines.append(entry.line)
        return b"".join(_event("line", encode(line)) for line in lines) or _NOTHING

    def _wanted(self, line: LogLine) -> bool:
        return self._stream is None or line.stream == self._stream


def _event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_disconnected(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
