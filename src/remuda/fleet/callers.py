"""Whether a call that names a node is the node's own, found out before anything is written.

Anybody can call with a secret of their own making. Such calls are answered by reading, a few at a time, so
that they neither take the lock for writing nor make those wait who need it.
"""

from collections.abc import Awaitable, Callable

import anyio

from remuda.core import limits
from remuda.core.errors import Unavailable
from remuda.core.ids import NodeId
from remuda.fleet.identity import Caller, proven
from remuda.fleet.model import Node

LookUp = Callable[[NodeId], Awaitable[Node]]
"""The node of this id; NotFound."""


class Callers:
    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._lookups = anyio.CapacityLimiter(limits.CALLERS_LOOKED_UP_MAX)
        self._proven: dict[NodeId, Caller] = {}  # Who last proved to be each node.

    async def prove(self, node_id: NodeId, caller: Caller) -> None:
        """Raises as `identify` does. Whoever writes decides again on what is stored by then."""
        if self._proven.get(node_id) != caller:
            await self.identify(node_id, caller)

    async def identify(self, node_id: NodeId, caller: Caller) -> None:
        """NotFound for an unknown node, Unauthorized where the caller is not that node, Unavailable where too
        many others are still being looked up."""
        if self._lookups.statistics().tasks_waiting >= limits.CALLERS_WAITING_MAX:
            raise Unavailable("too many unidentified callers are being looked up", hint="send it again")
        async with self._lookups:
            node = await self._look_up(node_id)
        proven(node, caller)
        self._proven.pop(node_id, None)
        self._proven[node_id] = caller
        while len(self._proven) > limits.CALLERS_REMEMBERED_MAX:
            del self._proven[next(iter(self._proven))]
