"""Changes of operations as server-sent events. A reader that lost its line continues where it was, on any
frontend, by the id of the last event it has seen."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from remuda.core.errors import RemudaError
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import Described, Responses, refuses
from remuda.gateway.middleware import HEAD_ONLY
from remuda.gateway.paths import OpPath
from remuda.gateway.services import Services, Svc
from remuda.ops.feed import Event
from remuda.ops.model import OpId

log = structlog.get_logger()
STREAM = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_STAY_S_MAX = 3600.0
_PART_BYTES = 64 << 10

routes = APIRouter(prefix="/api/ops", tags=["operations"], dependencies=[Depends(require_admin)])
_EVENT: Described = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["snapshot", "op", "ready", "progress"]},
        "id": {"type": "string", "description": "Send it as Last-Event-ID to continue after this event."},
        "data": {"type": "string", "description": "JSON."},
    },
}
_STREAMS: Responses = {200: {"content": {STREAM: {"schema": _EVENT}}}}
Place = Annotated[str, Header(alias="Last-Event-ID", description="The id of the last event seen.")]
Stay = Annotated[
    float,
    Query(alias="wait_s", ge=0, le=_STAY_S_MAX, description="How long to stay; 0: only what is there now."),
]


@routes.get("/events", response_class=Response, responses=_STREAMS | refuses(400, 401, 503))
async def events(request: Request, svc: Svc, place: Place = "", stay_s: Stay = _STAY_S_MAX) -> Response:
    """All operations: first as they are, or what changed since the last event seen; then each change."""
    return _stream(request, svc, place, stay_s)


@routes.get("/{op_id}/events", response_class=Response, responses=_STREAMS | refuses(400, 401, 404, 503))
async def op_events(
    op_id: OpPath, request: Request, svc: Svc, place: Place = "", stay_s: Stay = _STAY_S_MAX
) -> Response:
    """One operation: first as it is, or what changed since the last event seen; then each change."""
    await svc.ops.operations.view(op_id)
    return _stream(request, svc, place, stay_s, op_id)


def _stream(request: Request, svc: Services, place: str, stay_s: float, op: OpId | None = None) -> Response:
    stay = timedelta(seconds=0 if request.scope.get(HEAD_ONLY) else stay_s)
    svc.ops.feed.require_room()
    return StreamingResponse(_lines(svc, place, op, stay), media_type=STREAM, headers=_HEADERS)


async def _lines(svc: Services, place: str, op: OpId | None, stay: timedelta) -> AsyncIterator[bytes]:
    try:
        async for told in svc.ops.feed.events(place, op, stay):
            for part in _parts(told):
                yield part
    except RemudaError as error:  # The answer has begun: all that can be said is that it ends here.
        log.warning("event_stream_ended", reason=error.message)


def _parts(events: Sequence[Event]) -> Iterator[bytes]:
    """Small events are sent together: sending costs more than what is sent. Nothing is told as a comment."""
    if not events:
        yield b": nothing new\n\n"
    part = bytearray()
    for event in events:
        part += written(event)
        if len(part) >= _PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def written(event: Event) -> bytes:
    """One event of the stream; JSON holds no line breaks."""
    number = b"" if event.id is None else b"id: %d\n" % event.id
    return b"event: %b\n%bdata: %b\n\n" % (event.name.encode(), number, event.data)
