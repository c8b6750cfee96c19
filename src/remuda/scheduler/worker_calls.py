"""Commands to workers over the bus for loads and unloads, and how a replica's process is stopped."""

from datetime import timedelta
from typing import Final, TypeVar

from pydantic import BaseModel

from remuda.core import limits
from remuda.core.errors import BackendFailed
from remuda.core.ids import NodeId, ReplicaKey
from remuda.ops.ports import BusPort
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import WorkerCommands
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

_INSTALL_MOST: Final = timedelta(seconds=limits.LOAD_WHOLE_S)
_STOP: Final = timedelta(seconds=30)
_RUNNING: Final = timedelta(seconds=10)
_INSTALLED: Final = timedelta(seconds=30)


class BusWorker:
    """Implements scheduler.ports.WorkerBus. How long an install may take is its caller's to say."""

    def __init__(self, bus: BusPort) -> None:
        self._bus = bus

    async def install(self, node: NodeId, request: BackendInstall) -> BackendInstallReply:
        return await self._ask(subjects.backend_install(node), request, _INSTALL_MOST, BackendInstallReply)

    async def stop(self, node: NodeId, request: ModelStop) -> ModelStopReply:
        return await self._ask(subjects.model_stop(node), request, _STOP, ModelStopReply)

    async def stop_unheard(self, node: NodeId, key: ReplicaKey) -> None:
        await self._bus.publish(subjects.backend_stop(node), encode(BackendStop(backend=str(key))))

    async def running(self, node: NodeId) -> ModelsRunningReply:
        return await self._ask(subjects.models_running(node), ModelsRunning(), _RUNNING, ModelsRunningReply)

    async def installed(self, node: NodeId) -> BackendListReply:
        return await self._ask(subjects.backend_list(node), BackendList(), _INSTALLED, BackendListReply)

    async def _ask(self, subject: str, request: BaseModel, limit: timedelta, reply: type[M]) -> M:
        return decode(reply, await self._bus.request(subject, encode(request), limit))


# Stopping a process.


async def stop_given_up(worker: WorkerCommands, replica: Replica) -> None:
    """As `stop_process`; also what its worker may have started without anybody having heard of it."""
    if replica.address or replica.instance:
        await stop_process(worker, replica)
    else:
        await worker.stop_unheard(replica.node, replica.key)


async def stop_key(worker: WorkerCommands, replica: Replica) -> None:
    """Whatever its worker runs under this key, also a process that it started when the one we knew crashed.
    Only while the row stands: then nobody else may use the key."""
    order = _stop_order(replica)
    if not replica.instance:
        await stop_given_up(worker, replica)
        return
    reply = await worker.stop(replica.node, order)
    if _is_another(reply) and reply.address:
        successor = order.model_copy(update={"instance": "", "expected_address": reply.address})
        reply = await worker.stop(replica.node, successor)
    _check_stopped(replica, reply)


async def stop_process(worker: WorkerCommands, replica: Replica) -> None:
    """This very process, if there is one. BackendFailed when it does not end."""
    if replica.address or replica.instance:
        _check_stopped(replica, await worker.stop(replica.node, _stop_order(replica)))


def _stop_order(replica: Replica) -> ModelStop:
    return ModelStop(
        model_name=replica.key.model,
        process_key=str(replica.key),
        expected_address=_as_recorded(replica),
        instance=replica.instance,
        config_revision=replica.revision,
    )


def _check_stopped(replica: Replica, reply: ModelStopReply) -> None:
    if reply.matched and not reply.terminated and not _is_another(reply):
        raise BackendFailed(f"{replica.key} was not stopped: {reply.error or 'its worker gives no reason'}")


def _is_another(reply: ModelStopReply) -> bool:
    """The worker has another process under this key than the one that was meant."""
    return reply.matched and not reply.terminated and "mismatch" in reply.error


def _as_recorded(replica: Replica) -> str:
    """A worker that tells no instances compares the address with the one it gave its process itself."""
    return replica.address if replica.instance else f"127.0.0.1:{replica.address.rpartition(':')[2]}"
