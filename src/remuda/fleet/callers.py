"""Checks that a call in a node's name comes from that node, before anything is written.

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

Heard = Callable[[NodeId, Caller], bool]
"""Whether a heartbeat of that caller was lately taken as that node's."""


class Callers:
    def __init__(self, look_up: LookUp, heard: Heard) -> None:
        self._look_up = look_up
        self._heard = heard
        self._lookups = anyio.CapacityLimiter(limits.CALLERS_LOOKED_UP_MAX)

    async def prove(self, node_id: NodeId, caller: Caller) -> None:
        """Raises as `identify` does. Whoever writes decides again on what is stored by then."""
        if not self._heard(node_id, caller):
            await self._identify_stranger(node_id, caller)

    async def identify(self, node_id: NodeId, caller: Caller) -> None:
        """NotFound for an unknown node, Unauthorized where the caller is not that node, Unavailable where too
        many others who were not heard before are still being looked up."""
        if self._heard(node_id, caller):
            proven(await self._look_up(node_id), caller)
        else:
            await self._identify_stranger(node_id, caller)

    async def _identify_stranger(self, node_id: NodeId, caller: Caller) -> None:
        if self._lookups.statistics().tasks_waiting >= limits.CALLERS_WAITING_MAX:
            raise Unavailable("too many unidentified callers are being looked up", hint="send it again")
        async with self._lookups:
            node = await self._look_up(node_id)
        proven(node, caller)
