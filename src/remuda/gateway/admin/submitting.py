"""Submits operations for the routes that start them, waits for those that a caller wants finished, and makes
the answers."""

from datetime import timedelta

from remuda.core.errors import PeerFailed
from remuda.core.ids import NodeId
from remuda.gateway.services import Services
from remuda.ops.model import Kind, OpId, Source, State
from remuda.ops.op_views import failures
from remuda.ops.ports import View
from remuda.ops.selection import ALL, Selection
from remuda.ops.service import Accepted, OperationRequest
from remuda.wire.operations import JobReply

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
