"""Taking leave of the frontend: no new work, let what runs end, then be gone from its books.

Best effort within bounds. A frontend that is away learns the rest from our silence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import structlog

from remuda.core import limits
from remuda.core.errors import NotFound, RemudaError
from remuda.core.ids import BootId, NodeId
from remuda.wire.nodes import Farewell
from remuda.worker.ports import FrontendCalls

log = structlog.get_logger(__name__)


async def depart(
    frontend: FrontendCalls, node: NodeId, boot_id: BootId, *, for_good: bool = False
) -> NotFound | None:
    """Drain, wait until no request is in flight, deregister. What fails on the way is only logged. Returns
    what the frontend said if it does not know the node any more, and so will ask this worker for nothing.

    Both words name this boot: one that is late must not be held against the next.
    """
    farewell = Farewell(boot_id=boot_id, for_good=for_good)
    with anyio.move_on_after(limits.LEAVE_S):
        drained = False
        try:
            with _attempted("drain"):
                await frontend.drain(node, farewell)
                drained = True
            if drained:
                await _wait_idle(frontend, node)
            with _attempted("deregister"):
                await frontend.deregister(node, farewell)
                log.info("deregistered", node=node)
        except NotFound as unknown:
            log.info("node_was_removed", node=node, why="the frontend does not know it any more")
            return unknown
    return None


async def _wait_idle(frontend: FrontendCalls, node: NodeId) -> None:
    with anyio.move_on_after(limits.LEAVE_IDLE_S):
        while True:
            if not await _in_flight(frontend, node):
                return
            await anyio.sleep(limits.LEAVE_POLL_S)


async def _in_flight(frontend: FrontendCalls, node: NodeId) -> int:
    """Zero also when the frontend cannot tell: that is not worth waiting for."""
    with _attempted("models"):
        return sum(row.in_flight for row in await frontend.models(node))
    return 0


@contextmanager
def _attempted(step: str) -> Iterator[None]:
    try:
        with anyio.fail_after(limits.LEAVE_CALL_S):
            yield
    except NotFound:
        raise
    except (RemudaError, TimeoutError) as error:
        log.warning("departure_step_failed", step=step, reason=str(error) or "no answer in time")
