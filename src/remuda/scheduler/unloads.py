"""Asks for replicas to go: each is an operation of its own."""

from collections.abc import Awaitable, Callable, Sequence

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.ids import NodeId
from remuda.fleet.fleet import Standing
from remuda.ops.model import OpId, ReplicaTarget, Source, UnloadReason
from remuda.ops.ports import OpStore
from remuda.scheduler import wishes
from remuda.scheduler.model import Replica


class Unloads:
    """`changed` wakes whoever carries operations out."""

    def __init__(
        self,
        operations: OpStore,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        clock: Clock,
        entropy: Entropy,
        changed: Callable[[], None],
    ) -> None:
        self._operations = operations
        self._standings = standings
        self._clock = clock
        self._entropy = entropy
        self._changed = changed

    async def ask(self, replica: Replica, by: str, why: UnloadReason) -> OpId:
        """The operation that unloads it. One that is being loaded is given up first, for its load is replaced
        by this; should it be loaded by then, it is unloaded all the same."""
        operation, step = wishes.unload(
            OpId(self._entropy.uuid()),
            ReplicaTarget(replica.key, replica.revision, why),
            Source(replica.backend),
            replica.node,
            await self._name_of(replica.node),
            by=by,
            now=self._clock.now(),
        )
        submitted = await self._operations.submit(operation, [step])
        self._changed()
        return submitted.operation.id

    async def _name_of(self, node: NodeId) -> str:
        names = (one.node.name for one in await self._standings() if one.node.id == node)
        return next(names, str(node))
