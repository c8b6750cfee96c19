"""Removes a model from the frontends: the model itself, and what was brought for it to this machine. Each
frontend looks for itself which of what it has brought belongs to no model any more.
"""

from collections.abc import Sequence
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.errors import RemudaError
from remuda.model_installs.library import BroughtModel, ModelLibrary
from remuda.model_installs.ports import InstalledModels, ModelTable
from remuda.ops.model import OF_MODELS, DoneWithNote, Ending, Kind, ModelSpec, OpId, Step
from remuda.ops.ports import Filter, OpStore
from remuda.scheduler.model import StoredModel
from remuda.wire.sizes import install_size

log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 60.0
_LIVE_MAX: Final = 1000
_INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})


class Remover:
    def __init__(
        self,
        library: ModelLibrary,
        store: InstalledModels,
        operations: OpStore,
        table: ModelTable,
    ) -> None:
        self._library = library
        self._store = store
        self._operations = operations
        self._table = table
        self._turn = anyio.Lock()

    async def remove(self, step: Step) -> Ending:
        """None when neither the model nor what was brought for it is there."""
        spec, name = step.source.model or ModelSpec(), step.source.name
        try:
            if await self._store.remove_written(name, spec.written_at) is not None:
                self._table.rows_changed()
            freed = await self.tidy()
            if spec.any_files:
                await run_sync(self._library.remove_paths, await self._unused(spec.files))
        except RemudaError as error:
            return error.problem()
        return DoneWithNote(f"{install_size(freed)} freed") if freed else None

    async def tidy(self) -> int:
        """Remove what was brought here for models that are not there any more. How many bytes that were."""
        async with self._turn:
            # In this order: what an install has just made a model of is seen in one of the two.
            coming = await self._at_work()
            models = await self._store.models()
            await run_sync(self._library.sweep_staging, set(coming.values()))
            names = {one.name for one in models} | set(coming)
            paths = {file.path for one in models if one.manifest is not None for file in one.manifest.files}
            unused = [
                one
                for one in await run_sync(self._library.brought)
                # What it is called is of no matter: it may have been renamed.
                if one.name not in names and not any(file.path in paths for file in one.files)
            ]
            gone = [one.name for one in unused if await self._is_known(one)]
            return await run_sync(self._remove, gone, models) if gone else 0

    async def _is_known(self, brought: BroughtModel) -> bool:
        """Whether this database has ever had the model: a frontend that was started with another one removes
        nothing that was brought for the first."""
        about = Filter(kinds=OF_MODELS, model=brought.name, dismissed=True, limit=1)
        return bool(await self._operations.views(about))

    def _remove(self, names: Sequence[str], models: Sequence[StoredModel]) -> int:
        manifests = [one.manifest for one in models if one.manifest is not None]
        paths = {file.path for manifest in manifests for file in manifest.files}
        digests = {digest for manifest in manifests for digest in manifest.digests}
        freed = 0
        for name in names:
            freed += self._library.remove(name, others_use=paths, keep_content=digests)
            log.info("model_files_removed", model=name)
        return freed

    async def _at_work(self) -> dict[str, OpId]:
        live = await self._operations.views(Filter(finished=False, kinds=_INSTALLS, limit=_LIVE_MAX))
        return {view.operation.source.name: view.operation.id for view in live}

    async def _unused(self, paths: tuple[str, ...]) -> list[str]:
        """Of these, those that no model has in its manifest."""
        models = await self._store.models()
        used = {file.path for one in models if one.manifest is not None for file in one.manifest.files}
        return [path for path in paths if path not in used]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """What other frontends have removed goes from here, too, a little later."""
        task_status.started()
        while True:
            try:
                await self.tidy()
            except RemudaError as error:
                log.warning("models_not_tidied", reason=error.message)
            await anyio.sleep(_LOOK_EVERY_S)
