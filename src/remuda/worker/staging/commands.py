"""`files.fetch`: a load's request for the files of its model, reported and listed like an install."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Invalid
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, FilesFetch, FilesFetchReply, TakenBytes
from remuda.wire.sizes import install_size
from remuda.worker.commands.running_work import RunningAttempt, WorkInHand
from remuda.worker.staging.dropping import FetchedFiles
from remuda.worker.staging.fetching import FILES_MAX, CheckedFile, ModelFetcher

log = structlog.get_logger(__name__)

_OPS_MAX: Final = 100  # Of which it is known how much came from whom.
_SHARE = 90.0  # Of a load's way until its backend is looked at.


_Asked = tuple[str, tuple[str, ...]]
"""An operation, and the files of one of its requests."""


class FetchSteps:
    """How far the files of one request are, as progress events."""

    def __init__(self, request: FilesFetch, clock: Clock, taken: dict[str, int]) -> None:
        self.phase = FilePhase.STAGING
        self.overall = 0.0
        self._op_id = request.op_id
        self._clock = clock
        self._sizes = {file.path: file.size for file in request.files}
        self._done = dict.fromkeys(self._sizes, 0)
        self._total = sum(self._sizes.values())
        self._seq = 0
        self._sources: dict[str, str] = {}  # Of each file, the last that was asked.
        self._taken = taken  # Also of what was asked before for the same operation.

    def took(self, path: str, source: str, size: int) -> None:
        self._sources[path] = source
        self._taken[source] = self._taken.get(source, 0) + size

    @property
    def taken(self) -> tuple[TakenBytes, ...]:
        """From each source, the largest first; what sent nothing is left out."""
        found = sorted(self._taken.items(), key=lambda one: (-one[1], one[0]))
        return tuple(TakenBytes(source=source, size=size) for source, size in found if size)

    def reached(self, phase: FilePhase, path: str, done_bytes: int) -> InstallProgress:
        """Files arrive side by side: the bytes are those of all of them. What is read again on this machine
        is a phase of its own, and brings nothing forward."""
        self.phase = phase
        if phase is FilePhase.STAGING:
            self._done[path] = min(done_bytes, self._sizes[path])
        done, total = sum(self._done.values()), self._total
        self.overall = max(self.overall, _SHARE * done / total if total else 0.0)
        # A repeated request resumes where the one before was.
        self._seq = max(self._seq + 1, int(self._clock.now().timestamp() * 1000))
        number = list(self._sizes).index(path) + 1
        verb = "Copying" if phase is FilePhase.STAGING else "Checking"
        source = self._sources.get(path, "") if phase is FilePhase.STAGING else ""
        if phase is FilePhase.HASHING:
            done, total = done_bytes, self._sizes[path]
        return InstallProgress(
            op_id=self._op_id,
            file_name=f"{verb} {number}/{len(self._sizes)} {path}{f' (from {source})' if source else ''}",
            current=install_size(done),
            total=install_size(total),
            percentage=self.overall,
            phase=self.phase,
            seq=self._seq,
            current_bytes=done,
            total_bytes=total,
            overall=self.overall,
            file_number=number,
            file_count=len(self._sizes),
            file_bytes=done_bytes,
            file_size=self._sizes[path],
        )


class FetchCommand:
    """`placed` is called when there are new files in the folder of models."""

    def __init__(
        self,
        fetcher: ModelFetcher,
        work: WorkInHand,
        fetched: FetchedFiles,
        placed: Callable[[], Awaitable[None]],
    ) -> None:
        self._fetcher = fetcher
        self._fetched = fetched
        self._work = work
        self._placed = placed
        self._turns: dict[str, anyio.Lock] = {}
        self._taken: dict[_Asked, dict[str, int]] = {}

    async def fetch(self, request: FilesFetch) -> FilesFetchReply:
        """A request that is repeated takes the place of the earlier one, whose frontend may be gone."""
        if len(request.files) > FILES_MAX:
            raise Invalid(f"{len(request.files)} files at once; at most {FILES_MAX} are accepted")
        files = [self._fetcher.checked(file) for file in request.files]
        turn = self._turns.setdefault(request.op_id, anyio.Lock())
        if request.op_id:
            self._work.cancel(request.op_id)
        try:
            async with turn:
                taken = await self._fetch(request, files)
        finally:
            if not turn.statistics().tasks_waiting:
                self._turns.pop(request.op_id, None)
        return FilesFetchReply(success=True, taken=taken)

    async def _fetch(self, request: FilesFetch, files: Sequence[CheckedFile]) -> tuple[TakenBytes, ...]:
        steps = FetchSteps(request, self._fetcher.clock, self._taken_for(request))
        async with self._work.attempting("fetch", request, reported=False, tally=steps) as attempt:

            def on_file(phase: FilePhase, path: str, done_bytes: int) -> None:
                _tell(attempt, steps, phase, path, done_bytes)

            await run_sync(self._fetched.needed, request.files, request.model)
            await self._fetcher.fetch(files, on_file, steps.took)
            await run_sync(partial(self._fetched.needed, request.files, request.model, verified=True))
        await self._placed()
        return steps.taken

    def _taken_for(self, request: FilesFetch) -> dict[str, int]:
        """A request that broke off, or whose frontend is gone, is followed by another for the same files;
        also where it was answered, and the one who asked had gone."""
        asked = (request.op_id, tuple(file.path for file in request.files))
        while asked not in self._taken and len(self._taken) >= _OPS_MAX:
            self._taken.pop(next(iter(self._taken)))
        return self._taken.setdefault(asked, {}) if request.op_id else {}


def _tell(attempt: RunningAttempt, steps: FetchSteps, phase: FilePhase, path: str, done_bytes: int) -> None:
    attempt.tell(steps.reached(phase, path, done_bytes))
