"""Everything that a frontend can tell this worker to do, by subject: requests from the bus to their
handlers, each in a task of its own, each answered whatever happens.

A request's task belongs to this worker, not to the connection that brought it: losing that ends no install.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError, TooLarge, Unavailable
from remuda.core.ids import NodeId
from remuda.core.tasks import TaskOwner
from remuda.gallery.model import Gallery, MachineProfile
from remuda.gallery.sources import Sources
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendDelete,
    BackendDeleteReply,
    BackendInstall,
    BackendInstallReply,
    BackendList,
    BackendListReply,
    BackendRollback,
    BackendRollbackReply,
    BackendStop,
    BackendUpgrade,
    BackendUpgradeReply,
)
from remuda.wire.codec import Message, decode, encode
from remuda.wire.files import FilesDrop, FilesDropReply, FilesFetch, FilesFetchReply
from remuda.wire.models import (
    ModelDelete,
    ModelDeleteReply,
    ModelsRunning,
    ModelsRunningReply,
    ModelStop,
    ModelStopReply,
    ModelUnload,
    ModelUnloadReply,
)
from remuda.wire.nodes import Report
from remuda.worker.addresses import Advertised, ReplicaAddresses
from remuda.worker.commands import limits
from remuda.worker.commands.exclusive_access import ExclusiveAccess
from remuda.worker.commands.installed import ListDeleteRollback, Stopping
from remuda.worker.commands.installing import Installs, RecipeFor
from remuda.worker.commands.model_files import ModelFiles, ModelListing
from remuda.worker.commands.report import ReportBuilder
from remuda.worker.commands.running_work import Outlet, WorkInHand
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import RequestResolver
from remuda.worker.ports import BusRequest, Hear, Publish
from remuda.worker.processes.memory_use import UNKNOWN, ProcessMemory
from remuda.worker.processes.ports import Supervision
from remuda.worker.staging.commands import FetchCommand
from remuda.worker.staging.dropping import DropCommand, FetchedFiles
from remuda.worker.staging.fetching import ModelFetcher

log = structlog.get_logger(__name__)

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class Answering(Protocol):
    """A command, whatever its messages are."""

    @property
    def name(self) -> str: ...

    @property
    def subject(self) -> Callable[[NodeId], str]: ...

    async def answer(self, payload: bytes) -> bytes:
        """The reply, empty where there is none. Never raises."""
        ...

    def failure(self, reason: str, code: str = "") -> bytes:
        """A reply that says only this."""
        ...


@dataclass(frozen=True, slots=True)
class Command(Generic[Q, R]):
    """What is done about the messages on one subject.

    `reply` is None where none is waited for. Every reply has an `error`, and with nothing else said it is
    a failure, in the shape that this subject's callers know.
    """

    subject: Callable[[NodeId], str]
    request: type[Q]
    handle: Callable[[Q], Awaitable[R | None]]
    reply: type[R] | None = None
    malformed: str = "invalid request: {reason}"

    @property
    def name(self) -> str:
        return self.subject.__name__

    async def answer(self, payload: bytes) -> bytes:
        try:
            request = decode(self.request, payload)
        except RemudaError as error:
            log.warning("command_malformed", command=self.name, reason=error.message)
            return self.failure(self.malformed.format(reason=error))
        try:
            reply = await self.handle(request)
            return b"" if reply is None else encode(reply)
        except RemudaError as error:
            log.warning("command_failed", command=self.name, reason=error.message)
            return self.failure(str(error), error.code)
        except Exception:
            log.exception("command_broke", command=self.name)
            return self.failure("internal error: the worker's log has the details", "internal")

    def failure(self, reason: str, code: str = "") -> bytes:
        if self.reply is None:
            return b""
        sayable = reason.encode(errors="replace").decode()  # It may quote a file's name as the disk has it.
        return encode(self.reply.model_validate({"error": sayable, "code": code}))


class Dispatcher:
    """`run` owns the tasks. Messages that come while it does not run are refused."""

    def __init__(self, commands: Sequence[Answering]) -> None:
        self._commands = commands
        self._tasks = TaskOwner()
        self._at_work: Counter[str] = Counter()

    def handlers(self, node: NodeId) -> Mapping[str, Hear]:
        return {command.subject(node): partial(self._hear, command) for command in self._commands}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; callers that still wait for a reply then get an error."""
        await self._tasks.run(task_status=task_status)

    async def _hear(self, command: Answering, message: BusRequest) -> None:
        """Returns when the message is dealt with. Cancelling it only stops the waiting."""
        if not self._tasks.is_open or self._at_work[command.name] >= limits.PER_SUBJECT_MAX:
            log.warning("command_refused", command=command.name)
            reason = "this worker is busy; try again later"
            await _send(message, command.failure(reason, Unavailable.code))
            return
        done = anyio.Event()
        self._at_work[command.name] += 1
        self._tasks.start(self._deal_with, command, message, done)
        await done.wait()

    async def _deal_with(self, command: Answering, message: BusRequest, done: anyio.Event) -> None:
        """While the bus is away the reply is kept: the caller may still wait for it."""
        reply = command.failure("this worker is stopping", Unavailable.code)
        too_large = command.failure("the reply is too large for the bus", TooLarge.code)
        sent = False
        try:
            try:
                reply = await command.answer(message.payload)
            finally:
                self._at_work[command.name] -= 1
            await _send(message, reply, too_large)
            sent = True
        finally:
            if not sent:
                with anyio.CancelScope(shield=True), anyio.move_on_after(limits.LAST_WORD_S):
                    await _send(message, reply, too_large)
            done.set()


async def _send(message: BusRequest, reply: bytes, instead: bytes = b"") -> None:
    """A reply that cannot be sent is lost, and its sender finds out by asking again."""
    if message.respond is None or not reply:
        return
    try:
        try:
            await message.respond(reply)
        except TooLarge:
            await message.respond(instead)
    except RemudaError as error:
        log.warning("reply_not_sent", reason=error.message)


class Commands:
    """`run` it once, and let the worker's line subscribe to its handlers. Also the source of its reports.

    `galleries` are this machine's own; `open_galleries` is for those that a request brings. `changed` is
    called whenever a report would tell something new; `deliver` sends one, and returns when it has arrived.
    """

    def __init__(
        self,
        depot: Depot,
        supervision: Supervision,
        *,
        galleries: Sources,
        open_galleries: Callable[[tuple[Gallery, ...]], Sources],
        machine: Callable[[], Awaitable[MachineProfile]],
        recipe_for: RecipeFor,
        reached_at: Callable[[], Advertised],
        models: Path,
        changed: Callable[[], None],
        deliver: Callable[[], Awaitable[None]],
        more: Sequence[Answering] = (),
        fetcher: ModelFetcher | None = None,
        model_files_budget: str = "",
        memory_use: Callable[[str], ProcessMemory] = lambda instance: UNKNOWN,
    ) -> None:
        """`more` are commands that are not about backends. Without a `fetcher` no model files are fetched."""
        orders = RequestResolver(galleries, open_galleries, machine)
        addresses = ReplicaAddresses(reached_at)
        self._outlet = Outlet()
        self._work = WorkInHand(self._outlet.send, changed, self._deliver_installed)
        self._deliver = deliver
        self._access = ExclusiveAccess(depot, supervision, orders.capability, changed)
        fetched = _fetched(fetcher, models, supervision)
        listing = ModelListing(models, changed, fetched)
        self._report = ReportBuilder(
            depot,
            supervision,
            self._work,
            self._access,
            addresses,
            listing,
            orders.capability,
            changed,
            memory_use,
            fetches_files=fetcher is not None,
            model_files_budget=model_files_budget,
        )
        files_changed = self._report.files_changed
        installs = Installs(
            depot,
            supervision,
            orders,
            self._access,
            self._work,
            addresses,
            recipe_for=recipe_for,
            changed=files_changed,
        )
        depots = ListDeleteRollback(depot, self._access, self._work, orders.capability, files_changed)
        self._processes = processes = Stopping(supervision, addresses)
        fetching = _fetching(fetcher, fetched, self._work, listing)
        own = _answering(installs, depots, processes, ModelFiles(models), self._cancel)
        self._dispatcher = Dispatcher((*own, *fetching, *more))

    @property
    def idle(self) -> bool:
        """No backend is being changed: none is locked, and nothing is at work."""
        return not len(self._access.locks) and not self._work.report()

    def handlers(self, node: NodeId, publish: Publish) -> Mapping[str, Hear]:
        """What to subscribe to as this node. Progress goes out by `publish` from now on."""
        self._outlet.lead_to(node, publish)
        return self._dispatcher.handlers(node)

    async def _deliver_installed(self) -> None:
        await self._report.look_at_backends()
        await self._deliver()

    def report(self) -> Report:
        return self._report.report()

    async def running(self) -> ModelsRunningReply:
        """As `models.running` is answered."""
        return await self._processes.running(ModelsRunning())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that messages are taken. Until cancelled; what is at work then is given up."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report.run)
            await tasks.start(self._dispatcher.run)
            task_status.started()

    async def _cancel(self, request: BackendCancel) -> BackendCancelReply:
        return BackendCancelReply(success=True, cancelled=self._work.cancel(request.op_id))


def _answering(
    installs: Installs,
    depots: ListDeleteRollback,
    processes: Stopping,
    files: ModelFiles,
    cancel: Callable[[BackendCancel], Awaitable[BackendCancelReply]],
) -> tuple[Answering, ...]:
    return (
        Command(subjects.backend_install, BackendInstall, installs.install, BackendInstallReply),
        Command(subjects.backend_upgrade, BackendUpgrade, installs.upgrade, BackendUpgradeReply),
        Command(subjects.backend_cancel, BackendCancel, cancel, BackendCancelReply),
        Command(subjects.backend_list, BackendList, depots.list_installed, BackendListReply),
        Command(subjects.backend_delete, BackendDelete, depots.delete, BackendDeleteReply),
        Command(subjects.backend_rollback, BackendRollback, depots.rollback, BackendRollbackReply),
        Command(subjects.backend_stop, BackendStop, processes.stop_backend),
        Command(subjects.model_stop, ModelStop, processes.stop_model, ModelStopReply),
        Command(subjects.model_unload, ModelUnload, processes.unload, ModelUnloadReply),
        Command(subjects.models_running, ModelsRunning, processes.running, ModelsRunningReply),
        Command(subjects.model_delete, ModelDelete, files.delete, ModelDeleteReply, "invalid request"),
    )


def _fetched(fetcher: ModelFetcher | None, models: Path, supervision: Supervision) -> FetchedFiles | None:
    if fetcher is None:
        return None

    def loaded() -> set[str]:
        return {replica.key.model_id for replica in supervision.replicas()}

    return FetchedFiles(models, fetcher.hashes, fetcher.clock, loaded)


def _fetching(
    fetcher: ModelFetcher | None, fetched: FetchedFiles | None, work: WorkInHand, listing: ModelListing
) -> tuple[Answering, ...]:
    if fetcher is None or fetched is None:
        return ()
    fetches = FetchCommand(fetcher, work, fetched, listing.look)
    drops = DropCommand(fetched, listing.look)
    return (
        Command(subjects.files_fetch, FilesFetch, fetches.fetch, FilesFetchReply),
        Command(subjects.files_drop, FilesDrop, drops.drop, FilesDropReply),
    )
