"""Everything that a frontend can tell this worker to do, by subject."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from remuda.core.ids import NodeId
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
from remuda.worker.commands.dispatch import Command, Dispatcher
from remuda.worker.commands.exclusive_access import ExclusiveAccess
from remuda.worker.commands.installing import Installs, RecipeFor
from remuda.worker.commands.list_delete_rollback import ListDeleteRollback
from remuda.worker.commands.model_files import ModelFiles, ModelListing
from remuda.worker.commands.report import ReportBuilder
from remuda.worker.commands.resolve_request import RequestResolver
from remuda.worker.commands.running_work import Outlet, WorkInHand
from remuda.worker.commands.stopping import Stopping
from remuda.worker.depot.depot import Depot
from remuda.worker.ports import Hear, Publish
from remuda.worker.processes.ports import Supervision


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
    ) -> None:
        orders = RequestResolver(galleries, open_galleries, machine)
        addresses = ReplicaAddresses(reached_at)
        self._outlet = Outlet()
        self._work = WorkInHand(self._outlet.send, changed, self._deliver_installed)
        self._deliver = deliver
        self._access = ExclusiveAccess(depot, supervision, orders.capability)
        listing = ModelListing(models, changed)
        self._report = ReportBuilder(
            depot, supervision, self._work, addresses, listing, orders.capability, changed
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
        shelving = ListDeleteRollback(depot, self._access, self._work, orders.capability, files_changed)
        self._processes = processes = Stopping(supervision, addresses)
        files = ModelFiles(models)
        self._dispatcher = Dispatcher(
            (
                Command(subjects.backend_install, BackendInstall, installs.install, BackendInstallReply),
                Command(subjects.backend_upgrade, BackendUpgrade, installs.upgrade, BackendUpgradeReply),
                Command(subjects.backend_cancel, BackendCancel, self._cancel, BackendCancelReply),
                Command(subjects.backend_list, BackendList, shelving.list_installed, BackendListReply),
                Command(subjects.backend_delete, BackendDelete, shelving.delete, BackendDeleteReply),
                Command(subjects.backend_rollback, BackendRollback, shelving.rollback, BackendRollbackReply),
                Command(subjects.backend_stop, BackendStop, processes.stop_backend),
                Command(subjects.model_stop, ModelStop, processes.stop_model, ModelStopReply),
                Command(subjects.model_unload, ModelUnload, processes.unload, ModelUnloadReply),
                Command(subjects.models_running, ModelsRunning, processes.running, ModelsRunningReply),
                Command(
                    subjects.model_delete, ModelDelete, files.delete, ModelDeleteReply, "invalid request"
                ),
            )
        )

    @property
    def idle(self) -> bool:
        """No backend is being changed: nobody holds a lock on one, and nothing is at work."""
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
