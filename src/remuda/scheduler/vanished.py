"""Notices that the machine of a load has vanished: it answers neither over HTTP nor over the bus.

Nothing else says so for a long time: the bus goes on taking messages for a client that sends no goodbye, and
the fleet waits for heartbeats. A worker that is only busy, or has lost one of the two, still answers."""

from typing import Final

import anyio

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.inference.model import Endpoint
from remuda.scheduler.ports import Worker, WorkerHttp

_EVERY_S: Final = 5.0
_MISSES: Final = 2  # In a row; each takes CONFIRMATION_S twice.


async def until_vanished(node: NodeId, server: Endpoint, worker: Worker, worker_http: WorkerHttp) -> None:
    misses = 0
    while True:
        misses = 0 if await _answers(node, server, worker, worker_http) else misses + 1
        if misses >= _MISSES:
            return
        if not misses:
            await anyio.sleep(_EVERY_S)


async def _answers(node: NodeId, server: Endpoint, worker: Worker, worker_http: WorkerHttp) -> bool:
    if await worker_http.answers(server):
        return True
    with anyio.move_on_after(limits.CONFIRMATION_S):
        try:
            await worker.running(node)
        except RemudaError:
            return False
        return True
    return False
