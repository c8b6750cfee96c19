"""Closes connections to replicas that are no longer routed to: each load opens new ones."""

from collections.abc import Collection
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from remuda.inference.model import ReplicaEndpoint
from remuda.router.live_table import Tables


class ReplicaConnections(Protocol):
    async def forget(self, in_use: Collection[ReplicaEndpoint]) -> None:
        """Drop all but these; what is under way comes to its end."""
        ...


async def close_stale_connections(
    tables: Tables,
    connections: ReplicaConnections,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    while True:
        changed = tables.changed
        entries = tables.now.models.values()
        await connections.forget({route.endpoint for entry in entries for route in entry.routes})
        await changed.wait()
