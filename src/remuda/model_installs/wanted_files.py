"""Sees to it that what the configurations of models name is fetched: one operation for each model as it is
configured, whichever frontends see it. One that failed or was cancelled is not begun again by itself, unless
its source could not be reached.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Conflict, Forbidden, Invalid, Problem, RemudaError
from remuda.model_installs.service import HoldingFrontend
from remuda.models.config import ModelConfig
from remuda.models.reading import located, read_model
from remuda.models.source_refs import is_source
from remuda.models.wanted_sources import checked_sources, local_sources, main_artifact_of
from remuda.ops.model import (
    FRONTENDS,
    FRONTENDS_NAME,
    Goal,
    Kind,
    ModelSpec,
    Operation,
    OpId,
    RollOut,
    Source,
    State,
    Step,
    Wish,
)
from remuda.ops.ports import UNCOUNTED, Figures, Filter, OpSignal, OpStore, View
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.model import StoredModel
from remuda.scheduler.ports import FilesComing, FilesNotFetched

log = structlog.get_logger(__name__)

BY: Final = "its configuration"
_LOOK_EVERY_S: Final = 5.0
_OTHERS_FIRST: Final = timedelta(seconds=15)  # The frontend that was asked knows by whom, and begins.
_REACHED_AGAIN_AFTER: Final = timedelta(minutes=10)
_TRIES_MAX: Final = 32  # Operations for one text of one model; the last one can be retried.
_LIVE_MAX: Final = 1000
_INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})
_IDS: Final = uuid.UUID("0f6d1c8e-6f0b-4a51-9a39-6a3c1b0c5b11")
_AGAIN: Final = frozenset({State.FAILED, State.CANCELLED})  # Begun again only where a person asks.


class WantedFiles:
    """Implements scheduler.ports.ModelFetches. `local_sources`: files of this machine may be named by all
    admins; else by its own users, and by files in its own folder of models (not where it is `shared`)."""

    def __init__(
        self,
        operations: OpStore,
        catalogue: ModelCatalogue,
        *,
        clock: Clock,
        signal: OpSignal,
        holder: HoldingFrontend,
        local_sources: bool = False,
        shared: bool = False,
        figures: Figures = UNCOUNTED,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._operations = operations
        self._catalogue = catalogue
        self._clock = clock
        self._signal = signal
        self._holder = holder
        self._local_sources = local_sources
        self._shared = shared
        self._figures = figures
        self._refresh = refresh

    def check(self, text: str, *, on_own_machine: bool, before: str = "") -> None:
        """Forbidden for a configuration that names files of the frontend's machine where it may not, unless
        it did so `before`."""
        known = set(local_sources(read_model(before))) if before else set()
        config = read_model(text)
        with located(text):
            named = [one for one in local_sources(config) if one not in known]
        if named and not (self._local_sources or on_own_machine):
            raise Forbidden(
                f"{named[0]} is a file of the frontend's machine, which this frontend does not fetch for "
                "others",
                hint="run this command on that machine, or start the frontend with --allow-local-sources",
            )

    async def begin(self, name: str, by: str, *, on_own_machine: bool = False) -> View | None:
        """The operation that fetches what the model still lacks, also where the last one failed; None: it
        lacks nothing, or may not have it."""
        await self._refresh()
        found = self._catalogue.configured.get(name)
        if found is None or not found.lacks_files or found.config.disabled:
            return None
        return await self._begin(found.stored, by, asked=True, on_own_machine=on_own_machine)

    async def state(self, stored: StoredModel) -> FilesComing | FilesNotFetched:
        """Of a model that lacks files."""
        try:
            config = read_model(stored.text)
            checked_sources(config)
        except Invalid as error:
            return FilesNotFetched(error.problem())
        if not self._may(stored, config):
            words = f"{local_sources(config)[0]} is a file of the frontend's machine, which is not fetched"
            hint = "start the frontend with --allow-local-sources, or add the model again on that machine"
            return FilesNotFetched(Problem(Forbidden.code, words, hint))
        view = _last(await self._tries(stored))
        if view is None:
            return FilesComing("")
        return _state(view)

    async def _tries(self, stored: StoredModel) -> Sequence[View]:
        """The operations for this text of it, in their order."""
        ids = op_ids(stored)
        found = await self._operations.views(Filter(ids=ids, limit=len(ids), dismissed=True))
        by_id = {view.operation.id: view for view in found}
        return [by_id[op] for op in ids if op in by_id]

    async def _begin(
        self, stored: StoredModel, by: str, *, asked: bool, on_own_machine: bool = False
    ) -> View | None:
        tries = await self._tries(stored)
        last, ids = _last(tries), op_ids(stored)
        if last is not None:
            step = last.steps[0]
            if not step.state.final or (step.state in _AGAIN and not _replaced(step) and not asked):
                return last
            # What has just ended may not have been seen.
            await self._refresh()
            found = self._catalogue.configured.get(stored.name)
            if found is None or not found.lacks_files or found.stored.etag != stored.etag:
                return last
            if len(tries) >= len(ids):
                return last if step.state not in _AGAIN else await self._retried(last, by)
        config = read_model(stored.text)
        if not self._may(stored, config, on_own_machine=on_own_machine):
            return None
        operation = self._operation(ids[len(tries)], stored, config, by)
        step = Step(
            operation.id,
            FRONTENDS,
            FRONTENDS_NAME,
            operation.kind,
            operation.source,
            Goal((f"model {stored.name}",)),
        )
        submitted = await self._operations.submit(operation, [step])
        if not submitted.joined:
            self._figures.submitted(operation.kind)
            log.info("model_files_wanted", model=stored.name, op=operation.id)
        self._signal.notify()
        return submitted.view

    async def _retried(self, view: View, by: str) -> View:
        await self._operations.retry(view.operation.id, None, by)
        self._signal.notify()
        return await self._operations.view(view.operation.id)

    def _may(self, stored: StoredModel, config: ModelConfig, *, on_own_machine: bool = False) -> bool:
        by_file = bool(stored.file) and not self._shared
        return self._local_sources or on_own_machine or by_file or not local_sources(config)

    def _operation(self, op: OpId, stored: StoredModel, config: ModelConfig, by: str) -> Operation:
        holder, host = self._held(stored, config)
        spec = ModelSpec(configured=stored.etag, held_by=holder, held_on=host)
        first = str(checked_sources(config)[0]) if checked_sources(config) else ""
        source = Source("", uri=first, name=stored.name, model=spec)
        now = self._clock.now()
        return Operation(op, Kind.INSTALL_MODEL, source, RollOut(1), by, now, selection=FRONTENDS_NAME)

    def _held(self, stored: StoredModel, config: ModelConfig) -> tuple[str, str]:
        """The only frontend that can carry it out, and its machine; empty: any can. What comes has to be
        where the model's other files are."""
        if stored.file:
            return stored.frontend, stored.host
        if stored.manifest is not None and stored.manifest.source and stored.kept_by:
            mine = stored.kept_by == self._holder.frontend
            return stored.kept_by, self._holder.host if mine else ""
        all_come = is_source(config.file) or main_artifact_of(config) is not None
        all_come = all_come or config.file in {one.filename for one in config.download_files}
        if all_come and not local_sources(config):
            return "", ""
        return self._holder.frontend, self._holder.host

    # By itself.

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.look()
            except RemudaError as error:  # The store is away.
                log.warning("wanted_files_not_looked_at", reason=error.message)
            except Exception:  # One model's defect is no other's for ever.
                log.exception("wanted_files_broke")
            await anyio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Begin what is wanted, and end what is not wanted any more."""
        models = self._catalogue.configured
        for one in models.values():
            if one.lacks_files and not one.config.disabled and self._is_ours(one):
                await self._see_to(one.stored)
        await self._end_unwanted()

    def _is_ours(self, model: Catalogued) -> bool:
        stored = model.stored
        if stored.file:
            return stored.frontend == self._holder.frontend
        written = stored.updated_at
        return written is None or self._clock.now() - written >= _OTHERS_FIRST

    async def _see_to(self, stored: StoredModel) -> None:
        try:
            view = await self._begin(stored, BY, asked=False)
            if view is not None and _may_be_back(view, self._clock.now()):
                await self._retried(view, BY)
        except (Conflict, Invalid) as error:
            log.warning("model_files_not_fetched", model=stored.name, reason=error.message)

    async def _end_unwanted(self) -> None:
        live = await self._operations.views(Filter(finished=False, kinds=_INSTALLS, limit=_LIVE_MAX))
        wanted = [
            view for view in live if _configured(view.operation) and view.operation.wish is not Wish.CANCEL
        ]
        if not wanted:
            return
        await self._refresh()
        for view in wanted:
            operation = view.operation
            found = self._catalogue.configured.get(operation.model)
            if found is not None and found.stored.etag == _configured(operation):
                continue
            with_reason = "removed" if found is None else "changed"
            log.info("model_files_not_wanted", model=operation.model, op=operation.id, reason=with_reason)
            try:
                await self._operations.wish(operation.id, Wish.CANCEL)
            except Conflict:  # It is over.
                continue
            self._signal.notify()


def op_ids(stored: StoredModel) -> tuple[OpId, ...]:
    """Of the operations that fetch for this text of this model, one after another: every frontend knows them,
    so that none begins a second one beside the first."""
    name = f"{stored.name}\0{stored.etag}"
    return tuple(OpId(str(uuid.uuid5(_IDS, f"{name}\0{number}"))) for number in range(_TRIES_MAX))


def _last(views: Sequence[View]) -> View | None:
    return views[-1] if views else None


def _configured(operation: Operation) -> str:
    return (operation.source.model or ModelSpec()).configured


def _replaced(step: Step) -> bool:
    """By a removal of the model, which has been added again since."""
    return step.replaced_by is not None


def _may_be_back(view: View, now: datetime) -> bool:
    """Its source could not be reached for as long as it was tried, and some time has passed since."""
    step, ended = view.steps[0], view.operation.finished_at
    unreached = step.state is State.FAILED and step.problem is not None and step.problem.unanswered > 0
    return unreached and ended is not None and now - ended >= _REACHED_AGAIN_AFTER


def _state(view: View) -> FilesComing | FilesNotFetched:
    step, op = view.steps[0], view.operation.id
    match step.state:
        case State.FAILED:
            problem = step.problem or Problem("install_failed", step.reason)
            hint = problem.hint or f"try again with: remuda ops retry {op[:8]}"
            return FilesNotFetched(replace(problem, hint=hint), op)
        case State.CANCELLED if not _replaced(step):
            hint = f"fetch them after all with: remuda ops retry {op[:8]}"
            return FilesNotFetched(Problem("cancelled", "fetching its files was cancelled", hint), op)
    waits = step.problem.message if step.problem is not None and step.state is State.PENDING else ""
    return FilesComing(op, waits)
