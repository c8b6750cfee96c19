"""`files.fetch`: a load's request for the files of its model, told and listed like an install."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import structlog

from remuda.core.clock import Clock
from remuda.core.errors import Invalid
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, FilesFetch, FilesFetchReply
from remuda.wire.sizes import install_size
from remuda.worker.commands.running_work import RunningAttempt, WorkInHand
from remuda.worker.staging.fetching import FILES_MAX, CheckedFile, ModelFetcher

log = structlog.get_logger(__name__)

_SHARE = 90.0  # Of a load's way until its backend is looked at.


class FetchSteps:
    """How far the files of one request are, as the events that are told of it."""

    def __init__(self, request: FilesFetch, clock: Clock) -> None:
        self.phase = FilePhase.STAGING
        self.overall = 0.0
        self._op_id = request.op_id
        self._clock = clock
        self._sizes = {file.path: file.size for file in request.files}
        self._done = dict.fromkeys(self._sizes, 0)
        self._total = sum(self._sizes.values())
        self._seq = 0

    def reached(self, path: str, done_bytes: int) -> InstallProgress:
        self._done[path] = min(done_bytes, self._sizes[path])
        done = sum(self._done.values())
        self.overall = max(self.overall, _SHARE * done / self._total if self._total else 0.0)
        # A request that is repeated goes on where the one before was.
        self._seq = max(self._seq + 1, int(self._clock.now().timestamp() * 1000))
        number = list(self._sizes).index(path) + 1
        return InstallProgress(
            op_id=self._op_id,
            file_name=f"Copying {number}/{len(self._sizes)} {path}",
            current=install_size(done),
            total=install_size(self._total),
            percentage=self.overall,
            phase=self.phase,
            seq=self._seq,
            current_bytes=done,
            total_bytes=self._total,
            overall=self.overall,
        )


class FetchCommand:
    """`placed` is called when there are new files in the folder of models."""

    def __init__(
        self, fetcher: ModelFetcher, work: WorkInHand, placed: Callable[[], Awaitable[None]]
    ) -> None:
        self._fetcher = fetcher
        self._work = work
        self._placed = placed
        self._turns: dict[str, anyio.Lock] = {}

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
                await self._fetch(request, files)
        finally:
            if not turn.statistics().tasks_waiting:
                self._turns.pop(request.op_id, None)
        return FilesFetchReply(success=True)

    async def _fetch(self, request: FilesFetch, files: Sequence[CheckedFile]) -> None:
        steps = FetchSteps(request, self._fetcher.clock)
        async with self._work.attempting("fetch", request, reported=False, tally=steps) as attempt:

            def on_file(path: str, done_bytes: int) -> None:
                _tell(attempt, steps, path, done_bytes)

            await self._fetcher.fetch(files, on_file)
        await self._placed()


def _tell(attempt: RunningAttempt, steps: FetchSteps, path: str, done_bytes: int) -> None:
    attempt.tell(steps.reached(path, done_bytes))
