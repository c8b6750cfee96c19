"""Operations as REST resources: create, read, pause, cancel, retry, dismiss; and their changes as
server-sent events. A reader that lost its connection continues where it was, on any frontend, by the id of
the last event it has seen.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from remuda.core.errors import Conflict, Invalid, RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.model import Resources
from remuda.fleet.verdicts import ObservedNode
from remuda.gateway.admin.backends import CONCRETE, upgrade_item
from remuda.gateway.guards import Admin, require_admin
from remuda.gateway.messages import (
    KNOWN_FILTERS,
    NO_BODY_FIELDS,
    OpenApiPart,
    OpPath,
    Responses,
    answer,
    gives,
    one_of,
    read_known,
    refuses,
    takes,
)
from remuda.gateway.middleware import HEAD_ONLY
from remuda.gateway.services import Services, Svc
from remuda.gateway.shut_out import WatchedStream
from remuda.ops.feed import Event
from remuda.ops.model import Kind, OpId, Source, State, Wish
from remuda.ops.op_views import op_view, step_view, with_steps
from remuda.ops.ports import Filter, View
from remuda.ops.selection import Selection
from remuda.ops.service import Accepted, OperationRequest
from remuda.ops.targets import OperationPlan
from remuda.ops.upgrade_check import Checked
from remuda.ops.upgrades import CheckedSource, Unchecked, Withheld
from remuda.wire.operations import (
    BadVersionItem,
    CheckedItem,
    OpPlan,
    OpRequest,
    OpRetryBody,
    OpsSubmitted,
    OpSubmitted,
    OpView,
    OpViews,
    PlannedFetch,
    RefusedUpgradeItem,
    RollOutBody,
    UncheckedItem,
    UpgradesReply,
)

log = structlog.get_logger()
STREAM = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_STAY_S_MAX = 3600.0
_PART_BYTES = 64 << 10

event_routes = APIRouter(prefix="/api/ops", tags=["operations"], dependencies=[Depends(require_admin)])
_EVENT: OpenApiPart = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["snapshot", "op", "ready", "progress"]},
        "id": {"type": "string", "description": "Send it as Last-Event-ID to continue after this event."},
        "data": {"type": "string", "description": "JSON."},
    },
}
_STREAMS: Responses = {200: {"content": {STREAM: {"schema": _EVENT}}}}
LastEventId = Annotated[str, Header(alias="Last-Event-ID", description="The id of the last event seen.")]
Stay = Annotated[
    float,
    Query(alias="wait_s", ge=0, le=_STAY_S_MAX, description="How long to stay; 0: only what is there now."),
]


@event_routes.get("/events", response_class=Response, responses=_STREAMS | refuses(400, 401, 503))
async def events(request: Request, svc: Svc, place: LastEventId = "", stay_s: Stay = _STAY_S_MAX) -> Response:
    """All operations: first as they are, or what changed since the last event seen; then each change."""
    return _stream(request, svc, place, stay_s)


@event_routes.get(
    "/{op_id}/events", response_class=Response, responses=_STREAMS | refuses(400, 401, 404, 503)
)
async def op_events(
    op_id: OpPath, request: Request, svc: Svc, place: LastEventId = "", stay_s: Stay = _STAY_S_MAX
) -> Response:
    """One operation: first as it is, or what changed since the last event seen; then each change."""
    await svc.ops.operations.view(op_id)
    return _stream(request, svc, place, stay_s, op_id)


def _stream(request: Request, svc: Services, place: str, stay_s: float, op: OpId | None = None) -> Response:
    stay = timedelta(seconds=0 if request.scope.get(HEAD_ONLY) else stay_s)
    svc.ops.feed.require_room()
    stream = WatchedStream(_lines(svc, place, op, stay), media_type=STREAM, headers=_HEADERS)
    stream.caller, stream.services = request, svc
    return stream


async def _lines(svc: Services, place: str, op: OpId | None, stay: timedelta) -> AsyncIterator[bytes]:
    try:
        async for event in svc.ops.feed.events(place, op, stay):
            for part in _parts(event):
                yield part
    except RemudaError as error:  # The answer has begun: all that can be said is that it ends here.
        log.warning("event_stream_ended", reason=error.message)


def _parts(events: Sequence[Event]) -> Iterator[bytes]:
    """Small events are sent together: each message costs more than its bytes. Without events, a comment."""
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


_PAGE_MAX = 1000
_NUMBER_MAX = (1 << 63) - 1

routes = APIRouter(prefix="/api/ops", tags=["operations"], dependencies=[Depends(require_admin)])


@routes.post(
    "",
    status_code=202,
    openapi_extra=takes(OpRequest),
    responses={**gives(OpSubmitted, 400, 401, 404, status=202), 200: one_of(OpPlan), **CONCRETE},
)
async def create_op(request: Request, svc: Svc, admin: Admin) -> Response:
    """Say what is to be true on which nodes. With `dry_run` only what would be done is answered."""
    body = await read_known(request, OpRequest)
    wish = _asked(body, admin)
    if body.dry_run:
        nodes = await svc.ops.operations.nodes()
        return answer(_plan(body, await svc.ops.operations.plan(wish), nodes, svc))
    return answer(_accepted(await svc.ops.operations.submit(wish), svc), 202)


@routes.get("", responses=gives(OpViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_ops(
    svc: Svc,
    state: Annotated[
        Literal["live", "finished", "failed", "all"], Query(description="Which to list.")
    ] = "all",
    kind: Annotated[tuple[Kind, ...], Query(description="One or several; none: all.")] = (),
    backend: Annotated[str, Query(max_length=1024, description="As it was asked for.")] = "",
    model: Annotated[str, Query(max_length=1024, description="Of a load or unload.")] = "",
    node: Annotated[str, Query(max_length=1024, description="A node's name or id.")] = "",
    dismissed: Annotated[
        bool, Query(description="Also dismissed ones, as far as the history has them.")
    ] = False,
    id: Annotated[str, Query(max_length=1024, description="Or the beginning of one.")] = "",
    before: Annotated[int | None, Query(le=_NUMBER_MAX, description="The `next` of another page.")] = None,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 50,
) -> Response:
    """Operations, newest first, without their steps. Where there are more, `next` is the `before` of the
    next page."""
    if not (backend + model + node + id).isprintable():
        raise Invalid("backend, model, node, id: must be printable text")
    which = Filter(
        finished={"live": False, "finished": True, "failed": True, "all": None}[state],
        failed=state == "failed",
        kinds=frozenset(kind),
        backend=backend,
        model=model,
        node=await _node_id(node, svc) if node else None,
        history=dismissed,
        limit=limit + 1,  # One more tells whether there is another page.
        before=before,
        id_begins=id,
    )
    found = await svc.ops.operations.views(which)
    shown, more = found[:limit], len(found) > limit
    return answer(OpViews(operations=tuple(map(op_view, shown)), next=shown[-1].number if more else None))


@routes.post(
    "/upgrades",
    status_code=202,
    openapi_extra=takes(RollOutBody, required=False),
    responses=gives(OpsSubmitted, 400, 401, status=202),
)
async def upgrade_all(request: Request, svc: Svc, admin: Admin) -> Response:
    """Upgrade whatever can be, after a look at the registries. An empty list: there was nothing."""
    body = await read_known(request, RollOutBody)
    found = await svc.ops.upgrades.check()
    accepted, refused = await svc.ops.operations.upgrade_all(
        found.upgrades.values(), admin, rolling=body.policy == "rolling", batch=body.batch
    )
    shown, upgrades = tuple(_accepted(one, svc) for one in accepted), _upgrades(found, svc)
    submitted = OpsSubmitted(
        operations=shown,
        refused=tuple(f"{one.backend}: {one.error.public_text}" for one in refused),
        refusals=tuple(
            RefusedUpgradeItem(backend_name=one.backend, code=one.error.code, error=one.error.public_text)
            for one in refused
        ),
        unchecked=upgrades.unchecked,
        checked=upgrades.checked,
        known_bad=upgrades.known_bad,
    )
    return answer(submitted, 202)


@routes.get("/upgrades", responses=gives(UpgradesReply, 401))
async def possible_upgrades(svc: Svc) -> Response:
    """What could be upgraded and where nodes differ, as far as galleries and registries were heard; when each
    of them was asked, and which could not be."""
    return answer(_upgrades(await svc.ops.upgrades.current(), svc))


@routes.post("/upgrades/check", responses=gives(UpgradesReply, 400, 401), dependencies=[NO_BODY_FIELDS])
async def check_for_upgrades(svc: Svc) -> Response:
    """The same, after galleries and registries were asked, which takes a few seconds at most."""
    return answer(_upgrades(await svc.ops.upgrades.check(), svc))


@routes.get("/{op_id}", responses=gives(OpView, 401, 404))
async def one_op(op_id: OpPath, svc: Svc) -> Response:
    """An operation with its steps, and each step's attempts."""
    return _shown(await svc.ops.operations.view(op_id), svc)


@routes.post("/{op_id}/cancel", responses=gives(OpView, 400, 401, 404, 409), dependencies=[NO_BODY_FIELDS])
async def cancel_op(op_id: OpPath, svc: Svc) -> Response:
    """Stop it on every node. What a worker has fetched so far it keeps."""
    return _shown(await svc.ops.operations.wish(op_id, Wish.CANCEL), svc)


@routes.post("/{op_id}/pause", responses=gives(OpView, 400, 401, 404, 409), dependencies=[NO_BODY_FIELDS])
async def pause_op(op_id: OpPath, svc: Svc) -> Response:
    """Stop it until it is resumed."""
    return _shown(await svc.ops.operations.wish(op_id, Wish.PAUSE), svc)


@routes.post("/{op_id}/resume", responses=gives(OpView, 400, 401, 404, 409), dependencies=[NO_BODY_FIELDS])
async def resume_op(op_id: OpPath, svc: Svc) -> Response:
    """Go on with an operation that was paused."""
    return _shown(await svc.ops.operations.wish(op_id, Wish.RUN), svc)


@routes.post(
    "/{op_id}/retry",
    openapi_extra=takes(OpRetryBody, required=False),
    responses=gives(OpView, 400, 401, 404, 409),
)
async def retry_op(op_id: OpPath, request: Request, svc: Svc, admin: Admin) -> Response:
    """Retry failed nodes, and those waiting for another attempt, now: those named, or all."""
    body = await read_known(request, OpRetryBody)
    return _shown(await svc.ops.operations.retry(op_id, body.nodes, admin), svc)


@routes.post("/{op_id}/dismiss", responses=gives(OpView, 400, 401, 404, 409), dependencies=[NO_BODY_FIELDS])
async def dismiss_op(op_id: OpPath, svc: Svc) -> Response:
    """Put an operation away that is over; the history keeps it."""
    view = await svc.ops.operations.view(op_id)
    if view.operation.finished_at is None:
        raise Conflict("the operation is not finished", hint="cancel it first")
    await svc.ops.operations.dismiss(op_id)
    return _shown(await svc.ops.operations.view(op_id), svc)


def _upgrades(checked: Checked, svc: Services) -> UpgradesReply:
    items = tuple(upgrade_item(checked.upgrades[name]) for name in sorted(checked.upgrades))
    now = svc.ops.operations.now()
    return UpgradesReply(
        upgrades=items,
        unchecked=_unchecked(checked.unchecked),
        checked=tuple(_checked(one, now) for one in checked.sources),
        known_bad=tuple(map(_known_bad, checked.withheld)),
        unread=_unchecked(checked.unread),
    )


def _checked(one: CheckedSource, now: datetime) -> CheckedItem:
    age_s = max(round((now - one.at).total_seconds(), 1), 0.0)
    return CheckedItem(source=one.source, checked_at=one.at, age_s=age_s, backends=one.backends)


def _known_bad(one: Withheld) -> BadVersionItem:
    bad = one.bad
    return BadVersionItem(
        backend_name=one.backend,
        version=bad.version,
        digest=bad.digest,
        node_name=bad.node,
        failed_at=bad.at,
        reason=bad.reason,
    )


def _unchecked(sources: Sequence[Unchecked]) -> tuple[UncheckedItem, ...]:
    return tuple(
        UncheckedItem(source=one.source, reason=one.reason, backends=one.backends, checked_at=one.at)
        for one in sources
    )


async def _node_id(node: str, svc: Services) -> NodeId:
    """By name; what is no node's name is an id, perhaps of a node that was removed since."""
    named = (one.node.id for one in await svc.registry.standings() if one.node.name == node)
    return next(named, NodeId(node))


def _asked(body: OpRequest, by: str) -> OperationRequest:
    return OperationRequest(
        Kind(body.kind),
        Source(body.backend, body.galleries, body.uri, body.name, body.alias),
        Selection(body.nodes, body.selector),
        by,
        rolling=body.roll_out.policy == "rolling",
        batch=body.roll_out.batch,
        expires_in=None if body.expires_s is None else timedelta(seconds=body.expires_s),
        idempotency_key=body.idempotency_key,
        force=body.force,
    )


def _shown(view: View, svc: Services) -> Response:
    operations = svc.ops.operations
    return answer(with_steps(view, operations.now(), operations.board))


def _accepted(accepted: Accepted, svc: Services) -> OpSubmitted:
    operations = svc.ops.operations
    shown = with_steps(accepted.view, operations.now(), operations.board)
    return OpSubmitted(operation=shown, joined=accepted.joined, warnings=accepted.warnings)


def _plan(body: OpRequest, plan: OperationPlan, nodes: Sequence[ObservedNode], svc: Services) -> OpPlan:
    now = svc.ops.operations.now()
    steps = tuple(step_view(draft.step, now) for draft in plan.drafts)
    rooms = {one.standing.node.id: one.standing.node.resources for one in nodes}
    fetches = tuple(
        PlannedFetch(
            node_id=draft.step.node,
            fetch_bytes=draft.size_bytes,
            disk_free=_free_disk(rooms, draft.step.node),
        )
        for draft in plan.drafts
        if draft.step.state is State.PENDING and body.kind != "remove"
    )
    return OpPlan(kind=body.kind, backend=body.backend, steps=steps, warnings=plan.warnings, fetches=fetches)


def _free_disk(rooms: Mapping[NodeId, Resources], node: NodeId) -> int | None:
    room = rooms.get(node)
    return room.available_disk if room is not None and room.total_disk else None
