"""Workers over the bus, as loads and unloads speak to them."""

from datetime import timedelta
from typing import Final, TypeVar

from pydantic import BaseModel

from remuda.core.ids import NodeId
from remuda.ops.lines import Lines
from remuda.scheduler.deadlines import WHOLE_MOST
from remuda.scheduler.model import ReplicaKey
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendInstall,
    BackendInstallReply,
    BackendList,
    BackendListReply,
    BackendStop,
)
from remuda.wire.codec import decode, encode
from remuda.wire.models import ModelsRunning, ModelsRunningReply, ModelStop, ModelStopReply

M = TypeVar("M", bound=BaseModel)

_STOP: Final = timedelta(seconds=30)
_RUNNING: Final = timedelta(seconds=10)
_INSTALLED: Final = timedelta(seconds=30)


class BusWorker:
    """Implements scheduler.ports.Worker. How long an install may take is its caller's to say."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def install(self, node: NodeId, request: BackendInstall) -> BackendInstallReply:
        return await self._ask(subjects.backend_install(node), request, WHOLE_MOST, BackendInstallReply)

    async def stop(self, node: NodeId, request: ModelStop) -> ModelStopReply:
        return await self._ask(subjects.model_stop(node), request, _STOP, ModelStopReply)

    async def stop_unheard(self, node: NodeId, key: ReplicaKey) -> None:
        await self._lines.publish(subjects.backend_stop(node), encode(BackendStop(backend=str(key))))

    async def running(self, node: NodeId) -> ModelsRunningReply:
        return await self._ask(subjects.models_running(node), ModelsRunning(), _RUNNING, ModelsRunningReply)

    async def installed(self, node: NodeId) -> BackendListReply:
        return await self._ask(subjects.backend_list(node), BackendList(), _INSTALLED, BackendListReply)

    async def _ask(self, subject: str, request: BaseModel, limit: timedelta, reply: type[M]) -> M:
        return decode(reply, await self._lines.request(subject, encode(request), limit))
