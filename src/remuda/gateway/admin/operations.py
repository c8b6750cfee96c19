"""The contract's view of operations on backends and models: what is under way, failed, finished; and
how routes that start one submit it, wait for it where the caller wants it finished, and answer."""

from datetime import timedelta

from fastapi import APIRouter, Depends, Response

from remuda.core.errors import Conflict, NotFound, PeerFailed
from remuda.core.ids import NodeId
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import OpPath, answer, gives, one_of
from remuda.gateway.services import Services, Svc
from remuda.ops import op_views
from remuda.ops.model import OF_BACKENDS, OF_MODELS, Kind, OpId, Source, State, Wish
from remuda.ops.op_views import failures
from remuda.ops.ports import Filter, View
from remuda.ops.selection import ALL, Selection
from remuda.ops.service import Accepted, OperationRequest
from remuda.wire.operations import DoneReply, JobReply, OperationItems, PastItems, PlainError

DONE_WITHIN = timedelta(minutes=2)


class NotYetDeleted(PeerFailed):
    """It was asked for and goes on, and this caller waits no longer."""

    code = "not_yet_deleted"
    http_status = 504


class NotDeleted(PeerFailed):
    code = "not_deleted"
    http_status = 500


class NotYetUnloaded(PeerFailed):
    """It was asked for and goes on, and this caller waits no longer."""

    code = "not_yet_unloaded"
    http_status = 504


class NotUnloaded(PeerFailed):
    code = "not_unloaded"
    http_status = 500


async def ask(svc: Services, kind: Kind, source: Source, by: str, selection: Selection = ALL) -> Accepted:
    return await svc.ops.operations.submit(OperationRequest(kind, source, selection, by))


async def on_node(svc: Services, kind: Kind, source: Source, by: str, node_id: NodeId) -> Accepted:
    """NotFound for an unknown node."""
    node = (await svc.registry.standing(node_id)).node
    return await ask(svc, kind, source, by, Selection(names=(node.id,)))


async def wait_for(
    svc: Services, op: OpId, *, late: type[PeerFailed] = NotYetDeleted, failed: type[PeerFailed] = NotDeleted
) -> View:
    """Wait until it is over, as callers of these routes expect; other callers do not wait with them."""
    view = await svc.ops.feed.finished(op, DONE_WITHIN)
    if view is None:
        raise late(
            f"not finished after {DONE_WITHIN.total_seconds():.0f} s; it continues as operation {op}",
            hint=f"see /api/ops/{op}",
        )
    if any(step.state is State.FAILED for step in view.steps):
        raise failed(failures(view.steps), hint=f"retry it with POST /api/ops/{op}/retry")
    return view


def job(accepted: Accepted, message: str, *, uuid: bool = False, status: bool = False) -> JobReply:
    op = accepted.view.operation.id
    return JobReply(
        jobID=op,
        uuid=op if uuid else "",
        statusUrl=f"/api/backends/job/{op}" if status else "",
        message="; ".join((message, *accepted.warnings)),
    )


_SHOWN = OF_BACKENDS | OF_MODELS
_LOADS = frozenset({Kind.LOAD})
_LIVE_MAX = 10_000
_FAILED_MAX = 500
_HISTORY_MAX = 50

routes = APIRouter(prefix="/api/operations", tags=["operations"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(OperationItems, 401))
async def list_operations(svc: Svc) -> Response:
    """What is under way, and what failed and was not dismissed; with each node's share. Also models whose
    files are on their way to a node that is to load them."""
    operations = svc.ops.operations
    live = await operations.views(Filter(finished=False, kinds=_SHOWN, limit=_LIVE_MAX))
    failed = await operations.views(Filter(finished=True, failed=True, kinds=_SHOWN, limit=_FAILED_MAX))
    items = op_views.operation_items([*live, *failed], operations.now())
    loads = await operations.views(Filter(finished=False, kinds=_LOADS, limit=_LIVE_MAX))
    staging = op_views.staging_items(loads, svc.serving.staging_elsewhere())
    shown = sorted((*items, *staging), key=op_views.item_order)
    return answer(OperationItems(operations=tuple(shown)))


@routes.get("/history", responses=gives(PastItems, 401))
async def past_operations(svc: Svc) -> Response:
    """Finished operations, newest first; also dismissed ones."""
    over = Filter(finished=True, history=True, kinds=_SHOWN, limit=_HISTORY_MAX)
    views = await svc.ops.operations.views(over)
    return answer(PastItems(operations=tuple(map(op_views.past_item, views))))


@routes.delete("/history", responses=gives(DoneReply, 401))
async def clear_history(svc: Svc) -> Response:
    """Put all that is over away, and out of the history."""
    await svc.ops.operations.clear_history()
    return answer(DoneReply())


@routes.post("/{op_id}/cancel", responses=gives(DoneReply, 401, 404) | {400: one_of(PlainError)})
async def cancel_operation(op_id: OpPath, svc: Svc) -> Response:
    """Stop it on every node. What a worker has fetched so far it keeps. An unknown id is no error: nothing is
    at work under it."""
    return await _wish(op_id, Wish.CANCEL, svc, "Operation cancelled")


@routes.post("/{op_id}/pause", responses=gives(DoneReply, 401, 404) | {400: one_of(PlainError)})
async def pause_operation(op_id: OpPath, svc: Svc) -> Response:
    """Stop it for now. What a worker has fetched so far it keeps. An unknown id is no error."""
    return await _wish(op_id, Wish.PAUSE, svc, "Operation paused")


@routes.post("/{op_id}/dismiss", responses=gives(DoneReply, 401, 404))
async def dismiss_operation(op_id: OpPath, svc: Svc) -> Response:
    """List it no longer, if it is over; the history keeps it. Of one that is not over nothing changes."""
    await svc.ops.operations.dismiss(op_id)
    return answer(DoneReply(message="Operation dismissed"))


async def _wish(op_id: OpId, wish: Wish, svc: Svc, done: str) -> Response:
    operations = svc.ops.operations
    try:
        if (await operations.view(op_id)).operation.wish is wish is Wish.CANCEL:
            raise Conflict("the operation is already being cancelled")
        await operations.wish(op_id, wish)
    except NotFound:
        return answer(DoneReply(message=done))
    except Conflict as refused:
        return answer(PlainError(error=refused.public_text, reason=refused.code), 400)
    return answer(DoneReply(message=done))
