"""What operations need of the bus, and hearing a node's progress by it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

import anyio
import structlog

from remuda.core.errors import Rejected, RemudaError
from remuda.core.ids import NodeId
from remuda.ops.model import OpId
from remuda.wire import subjects
from remuda.wire.backends import InstallProgress
from remuda.wire.codec import decode

log = structlog.get_logger(__name__)

_SUBSCRIBE_S: Final = 5.0


class Heard(Protocol):
    @property
    def payload(self) -> bytes: ...


class Lines(Protocol):
    """The bus. Raises BusUnusable while it is down, BusRefused when it does not let us."""

    async def request(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        """The reply. Raises NodeUnreachable when nobody listens, and PeerFailed after `limit`: somebody may
        have heard it then, and may be at work on it."""
        ...

    async def publish(self, subject: str, payload: bytes) -> None: ...

    async def subscribe(self, subject: str, handler: Callable[[Heard], Awaitable[None]]) -> object:
        """Returns when the server has confirmed it, however long that takes."""
        ...


class ProgressLines:
    """One standing subscription per node that was ever worked with, and a listener for each attempt."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._locks: dict[NodeId, anyio.Lock] = {}
        self._confirmed: set[NodeId] = set()
        self._listeners: dict[tuple[NodeId, str], Callable[[InstallProgress], None]] = {}

    @asynccontextmanager
    async def listening(
        self, node: NodeId, op: OpId, listener: Callable[[InstallProgress], None]
    ) -> AsyncIterator[None]:
        """Events of this operation on this node go to `listener` while the block lasts.

        Without a subscription the block runs all the same: progress is seen or not, the reply decides.
        """
        self._listeners[node, op] = listener
        try:
            await self._subscribe(node)
            yield
        finally:
            if self._listeners.get((node, op)) is listener:
                del self._listeners[node, op]

    async def _subscribe(self, node: NodeId) -> None:
        with anyio.move_on_after(_SUBSCRIBE_S):
            async with self._locks.setdefault(node, anyio.Lock()):
                if node in self._confirmed:
                    return
                try:
                    await self._lines.subscribe(
                        subjects.install_progress_all(node), partial(self._hear, node)
                    )
                except RemudaError as error:
                    log.warning("progress_not_subscribed", node=node, reason=error.message)
                    return
                self._confirmed.add(node)
                return
        log.warning("progress_not_subscribed", node=node, reason="the bus did not confirm it in time")

    async def _hear(self, node: NodeId, message: Heard) -> None:
        try:
            event = decode(InstallProgress, message.payload)
        except Rejected:
            return
        listener = self._listeners.get((node, event.op_id))
        if listener is not None:
            listener(event)
