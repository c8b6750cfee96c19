"""Removes a model from the frontends: the model itself, and what was brought for it to this machine. Each
frontend looks for itself which of what it has brought belongs to no model any more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.model_installs.library import UNUSED, BroughtModel, ModelLibrary, Removed
from remuda.model_installs.ports import InstalledModels, ModelTable
from remuda.model_installs.removed_files import users_of
from remuda.model_installs.uploads import ModelUploads, uploaded
from remuda.ops.model import OF_MODELS, DoneWithNote, Ending, Kind, ModelSpec, Step
from remuda.ops.ports import Filter, OpStore, View
from remuda.scheduler.model import StoredModel
from remuda.wire.sizes import install_size

log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 60.0
_LIVE_MAX: Final = 1000
_NAMED_MAX: Final = 3
_INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})


@dataclass(frozen=True, slots=True)
class Tidied:
    """What became of what was brought for models that are not there any more, by their names."""

    removed: Mapping[str, Removed] = field(default_factory=dict)
    failed: Mapping[str, RemudaError] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)  # Models that still name files, by path.


class Remover:
    def __init__(
        self,
        library: ModelLibrary,
        store: InstalledModels,
        operations: OpStore,
        table: ModelTable,
        uploads: ModelUploads,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._library = library
        self._store = store
        self._operations = operations
        self._table = table
        self._uploads = uploads
        self._turn = anyio.Lock()

    async def remove(self, step: Step) -> Ending:
        """None when neither the model nor what was brought for it is there."""
        spec, name = step.source.model or ModelSpec(), step.source.name
        try:
            if await self._store.remove_written(name, spec.written_at) is not None:
                self._table.rows_changed()
            tidied = await self.tidy()
            if spec.any_files:
                await run_sync(self._library.remove_paths, await self._unused(spec.files))
        except RemudaError as error:
            return error.problem()
        if name in tidied.failed:
            return tidied.failed[name].problem()
        notes = _notes(tidied, name, spec)
        return DoneWithNote("; ".join(notes)) if notes else None

    async def tidy(self) -> Tidied:
        """Remove what was brought here for models that are not there any more."""
        async with self._turn:
            # In this order: what an install has just made a model of is seen in one of the two.
            live = await self._at_work()
            coming = {view.operation.source.name: view.operation.id for view in live}
            await self._uploads.sweep({uploaded(view.operation.source.uri) for view in live})
            models = await self._store.models()
            await run_sync(self._library.sweep_staging, set(coming.values()))
            await run_sync(self._sweep_content, models, set(coming.values()))
            names = {one.name for one in models} | set(coming)
            paths = {file.path for one in models if one.manifest is not None for file in one.manifest.files}
            unused = [
                one
                for one in await run_sync(self._library.brought)
                # What it is called is of no matter: it may have been renamed.
                if one.name not in names and not (one.files and all(file.path in paths for file in one.files))
            ]
            gone = [one for one in unused if await self._is_known(one)]
            return await run_sync(self._remove, gone, models) if gone else Tidied()

    def _sweep_content(self, models: Sequence[StoredModel], at_work: Collection[str]) -> None:
        digests = {digest for one in models if one.manifest is not None for digest in one.manifest.digests}
        self._library.sweep_content(digests, at_work, self._clock.now() - UNUSED)

    async def _is_known(self, brought: BroughtModel) -> bool:
        """Whether this database has ever had the model: a frontend that was started with another one removes
        nothing that was brought for the first."""
        about = Filter(kinds=OF_MODELS, model=brought.name, dismissed=True, limit=1)
        return bool(await self._operations.views(about))

    def _remove(self, unused: Sequence[BroughtModel], models: Sequence[StoredModel]) -> Tidied:
        digests = {digest for one in models if one.manifest is not None for digest in one.manifest.digests}
        users = users_of(self._library.models, models, {file.path for one in unused for file in one.files})
        removed, failed = dict[str, Removed](), dict[str, RemudaError]()
        for name in (one.name for one in unused):
            try:
                done = self._library.remove(name, others_use=users, keep_content=digests)
            except RemudaError as error:  # One model's files are no reason to keep those of the others.
                log.warning("model_files_not_removed", model=name, reason=error.message)
                failed[name] = error
                continue
            removed[name] = done
            if done.freed_bytes or not done.used:  # What others use is looked at again each time.
                log.info("model_files_removed", model=name)
        return Tidied(removed, failed, users)

    async def _at_work(self) -> Sequence[View]:
        return await self._operations.views(Filter(finished=False, kinds=_INSTALLS, limit=_LIVE_MAX))

    async def _unused(self, paths: tuple[str, ...]) -> list[str]:
        """Of these, those that no model has in its manifest or names."""
        models = await self._store.models()
        used = await run_sync(users_of, self._library.models, models, paths)
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


def _notes(tidied: Tidied, name: str, spec: ModelSpec) -> list[str]:
    """What people should know about a model's files: how much was freed, and which stay, and why."""
    freed = sum(one.freed_bytes for one in tidied.removed.values())
    notes = [f"{install_size(freed)} freed"] if freed else []
    removed = tidied.removed.get(name, Removed())
    notes += _some([f"{path} stays: the model {tidied.users[path]} uses it" for path in removed.used])
    gone = spec.files if spec.any_files else ()
    changed = [path for path in removed.changed if path not in gone]
    return notes + _some([f"{path} stays: it was changed since it was installed" for path in changed])


def _some(notes: Sequence[str]) -> list[str]:
    more = len(notes) - _NAMED_MAX
    return [*notes[:_NAMED_MAX], *([f"and {more} more"] if more > 0 else [])]
