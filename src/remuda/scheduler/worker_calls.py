"""Commands to workers over the bus for loads and unloads: asking for a replica's process, stopping it, and
noticing when an answer will not come: it was lost, or the whole machine is gone.

An answer is lost with the connection it was on. Silence does not tell: the worker itself has to show, twice,
that it is not working on it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Final, TypeVar

import anyio
import structlog
from pydantic import BaseModel

from remuda.core import limits
from remuda.core.errors import BackendFailed, NodeUnreachable, RemudaError
from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Standing
from remuda.fleet.node_views import current_report
from remuda.fleet.verdicts import is_localai
from remuda.inference.model import ReplicaEndpoint
from remuda.ops.model import OpId, Step
from remuda.ops.ports import BusPort
from remuda.scheduler.model import Replica, target_of
from remuda.scheduler.ports import LoadProgress, WorkerCommands, WorkerHttp
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendInstall,
    BackendInstallReply,
    BackendList,
    BackendListReply,
    BackendStop,
    InstalledBackend,
)
from remuda.wire.codec import decode, encode
from remuda.wire.files import FilesDrop, FilesDropReply, FilesFetch, FilesFetchReply
from remuda.wire.models import ModelsRunning, ModelsRunningReply, ModelStop, ModelStopReply, RunningModel
from remuda.wire.nodes import Report

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", bound=BaseModel)

_INSTALL_MOST: Final = timedelta(seconds=limits.LOAD_WHOLE_S)
_STOP: Final = timedelta(seconds=30)
_RUNNING: Final = timedelta(seconds=10)
_INSTALLED: Final = timedelta(seconds=30)
_DROP: Final = timedelta(minutes=10)  # Files that have changed are hashed before they are kept.


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

    async def fetch_files(self, node: NodeId, request: FilesFetch) -> FilesFetchReply:
        return await self._ask(subjects.files_fetch(node), request, _INSTALL_MOST, FilesFetchReply)

    async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
        return await self._ask(subjects.files_drop(node), request, _DROP, FilesDropReply)

    async def _ask(self, subject: str, request: BaseModel, limit: timedelta, reply: type[M]) -> M:
        return decode(reply, await self._bus.request(subject, encode(request), limit))


# Stopping a process.


async def stop_given_up(worker: WorkerCommands, replica: Replica) -> None:
    """As `stop_process`; also what its worker may have started without a frontend having heard of it."""
    if replica.address or replica.instance:
        await stop_process(worker, replica)
    else:
        await worker.stop_unheard(replica.node, replica.key)


async def stop_key(worker: WorkerCommands, replica: Replica) -> None:
    """Whatever its worker runs under this key, also a process that it started when the one we knew crashed.
    Only while the row stands: then the key is taken."""
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


_TIMES: Final = 2


class AnswerVerdict(Enum):
    WAIT = auto()
    ASK_AGAIN = auto()  # It is done, or can be begun afresh: installs are safe to repeat.
    LOST = auto()  # Its worker knows nothing of it.


@dataclass(frozen=True, slots=True)
class AnswerMemory:
    """What was noticed since the worker was asked, and counts only when it is noticed again."""

    known: int | None = None  # The report that was there when it was asked, which says nothing.
    without: frozenset[int] = frozenset()  # Reports that have nothing of this in hand.
    moved: float = 0.0  # How far the bytes were.
    absences: int = 0  # In a row.


@dataclass(frozen=True, slots=True)
class Lists:
    """What a worker without reports answered when it was asked, and how far the bytes were by then."""

    running: Sequence[RunningModel]
    installed: Sequence[InstalledBackend]
    moved: float = 0.0


def by_report(report: Report, op: OpId, memory: AnswerMemory) -> tuple[AnswerVerdict, AnswerMemory]:
    if report.sequence == memory.known or any(work.op_id == op for work in report.work):
        return AnswerVerdict.WAIT, memory
    without = memory.without | {report.sequence}
    verdict = AnswerVerdict.ASK_AGAIN if len(without) >= _TIMES else AnswerVerdict.WAIT
    return verdict, replace(memory, without=without)


def by_lists(
    lists: Lists, key: ReplicaKey, backend: str, memory: AnswerMemory
) -> tuple[AnswerVerdict, AnswerMemory]:
    """A backend that is being fetched runs nowhere yet. One that is there starts within a moment: if it does
    not, it is not being worked on."""
    if any(key == (one.model_id, one.replica_index) for one in lists.running):
        return AnswerVerdict.ASK_AGAIN, memory
    if lists.moved > memory.moved or not _has(lists.installed, backend):
        return AnswerVerdict.WAIT, replace(memory, moved=lists.moved, absences=0)
    absences = memory.absences + 1
    verdict = AnswerVerdict.LOST if absences >= _TIMES else AnswerVerdict.WAIT
    return verdict, replace(memory, absences=absences)


def _has(installed: Sequence[InstalledBackend], backend: str) -> bool:
    """Builds are listed by names of their own, such as `cuda12-llama-cpp`, which end with what they are."""
    wanted = backend.rpartition("@")[2].lower()
    return any(f"-{one.name.lower()}".endswith(f"-{wanted}") for one in installed)


_REPORT_S: Final = 5.0
_LISTS_S: Final = 30.0  # Longer than a process takes to start.
_PING_EVERY_S: Final = 5.0
_UNHEARD_MAX: Final = 4
_UNHEARD_S: Final = 0.5
_BACK_EVERY_S: Final = 1.0
_MISSES_MAX: Final = 2  # In a row; each takes CONFIRMATION_S twice.


class Installing:
    """For one step. `standing` is its node's, as it is now."""

    def __init__(
        self,
        worker: WorkerCommands,
        step: Step,
        standing: Callable[[], Awaitable[Standing]],
        progress: LoadProgress,
    ) -> None:
        self._worker = worker
        self._step = step
        self._standing = standing
        self._progress = progress

    async def ask(self, request: BackendInstall, standing: Standing) -> BackendInstallReply:
        return await self.until_answered(partial(self._worker.install, self._step.node, request), standing)

    async def until_answered(self, send: Callable[[], Awaitable[R]], standing: Standing) -> R:
        """The worker's answer, which is asked for again when it was lost. NodeUnreachable when the worker
        answers, but knows nothing of this. `standing` is the node's before it is asked."""
        unheard = 0
        while True:
            ended = await self._answer_or_verdict(send, standing)
            match ended:
                case NodeUnreachable() if unheard < _UNHEARD_MAX:
                    unheard += 1  # It may have registered a moment ago, and be about to listen.
                    await anyio.sleep(_UNHEARD_S)
                case RemudaError():
                    raise ended
                case AnswerVerdict.LOST:
                    raise NodeUnreachable(f"the worker on {self._step.node_name} has lost this load")
                case AnswerVerdict():
                    log.warning("install_asked_again", op=self._step.op, node=self._step.node_name)
                case _:
                    return ended

    async def _answer_or_verdict(
        self, send: Callable[[], Awaitable[R]], standing: Standing
    ) -> R | RemudaError | AnswerVerdict:
        answer: R | RemudaError | None = None
        verdict = AnswerVerdict.WAIT

        async def watch() -> None:
            nonlocal verdict
            verdict = await self._verdict(standing)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                answer = await send()
            except RemudaError as error:
                answer = error
            tasks.cancel_scope.cancel()
        return verdict if answer is None else answer

    async def _verdict(self, standing: Standing) -> AnswerVerdict:
        """Comes to one only when the answer is lost."""
        peer, known = is_localai(standing.node), current_report(standing.node)
        memory = AnswerMemory(
            known=None if known is None else known.sequence, moved=self._progress.moved(self._step)
        )
        verdict = AnswerVerdict.WAIT
        while verdict is AnswerVerdict.WAIT:
            await anyio.sleep(_LISTS_S if peer else _REPORT_S)
            try:
                verdict, memory = await (self._ask_lists(memory) if peer else self._read_report(memory))
            except RemudaError:  # The store is away, or the node is: others see to that.
                continue
        return verdict

    async def _read_report(self, memory: AnswerMemory) -> tuple[AnswerVerdict, AnswerMemory]:
        report = current_report((await self._standing()).node)
        return (AnswerVerdict.WAIT, memory) if report is None else by_report(report, self._step.op, memory)

    async def _ask_lists(self, memory: AnswerMemory) -> tuple[AnswerVerdict, AnswerMemory]:
        node = self._step.node
        running = await self._worker.running(node)
        if running.error:
            return AnswerVerdict.WAIT, memory
        installed = await self._worker.installed(node)
        lists = Lists(running.models, installed.backends, self._progress.moved(self._step))
        return by_lists(lists, target_of(self._step).key, self._step.source.backend, memory)


async def until_vanished(
    node: NodeId, server: ReplicaEndpoint, worker: WorkerCommands, worker_http: WorkerHttp
) -> None:
    """Until the machine answers neither over HTTP nor over the bus. Nothing else says so for a long time: the
    bus goes on taking messages for a client that sends no goodbye, and the fleet waits for heartbeats. A
    worker that is only busy, or has lost one of the two, still answers."""
    misses = 0
    while True:
        misses = 0 if await _answers(node, server, worker, worker_http) else misses + 1
        if misses >= _MISSES_MAX:
            return
        if not misses:
            await anyio.sleep(_PING_EVERY_S)


async def is_back(
    node: NodeId, server: ReplicaEndpoint, worker: WorkerCommands, worker_http: WorkerHttp, within_s: float
) -> bool:
    """Whether a machine that had vanished answers again within this time: a worker that was killed is started
    anew in seconds."""
    until_s = anyio.current_time() + within_s
    while anyio.current_time() < until_s:
        if await _answers(node, server, worker, worker_http):
            return True
        await anyio.sleep(_BACK_EVERY_S)
    return False


async def _answers(
    node: NodeId, server: ReplicaEndpoint, worker: WorkerCommands, worker_http: WorkerHttp
) -> bool:
    if await worker_http.answers(server):
        return True
    with anyio.move_on_after(limits.CONFIRMATION_S):
        try:
            await worker.running(node)
        except RemudaError:
            return False
        return True
    return False
