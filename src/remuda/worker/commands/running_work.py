"""Running installs, upgrades and fetches of model files: their progress, published often enough to be seen
and no more, and cancelling one.

The install never waits for the bus: it leaves the newest event behind, and another task sends it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Literal, Protocol

import anyio
import structlog

from remuda.core.errors import Conflict, RemudaError, StartFailed
from remuda.core.events import AutoResetEvent
from remuda.core.ids import NodeId
from remuda.oci.fetch import PullPhase
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendDelete,
    BackendInstall,
    BackendRollback,
    BackendUpgrade,
    InstallPhase,
    InstallProgress,
)
from remuda.wire.codec import encode
from remuda.wire.files import FilesFetch
from remuda.wire.nodes import Work
from remuda.wire.sizes import install_size
from remuda.worker.commands import limits
from remuda.worker.depot.fetch_unpack import ProgressStep
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.ports import Publish

log = structlog.get_logger(__name__)

SendProgress = Callable[[InstallProgress], Awaitable[None]]


class InstallSteps:
    """Steps, one after the other, as the events they come to."""

    def __init__(self, op_id: str, backend: str) -> None:
        self.source = ""  # Where the backend comes from, once that is known.
        self.phase = InstallPhase.RESOLVING
        self.overall = 0.0
        self._op_id = op_id
        self._backend = backend
        self._seq = 0
        self._totals: dict[str, int] = {}
        self._done: dict[InstallPhase, dict[str, int]] = {}

    def stepped(self, step: ProgressStep) -> InstallProgress:
        self.phase = InstallPhase(step.phase)
        self.overall = min(max(self.overall, step.percentage), 100.0)
        if step.file is None:
            if self.overall < 100.0:  # Another source is begun with.
                self._totals.clear()
                self._done.clear()
            return self._event(self._shown())
        done = self._done.setdefault(InstallPhase(step.file.phase), {})
        done[step.file.file] = step.file.done_bytes
        known = self._totals.get(step.file.file, 0)
        self._totals[step.file.file] = max(known, step.file.total_bytes, step.file.done_bytes)
        return self._event(self._shown(step.file.file))

    def starting(self) -> InstallProgress:
        self.phase, self.overall = InstallPhase.STARTING, 100.0
        return self._event(f"Starting {self._backend}")

    def _shown(self, file: str = "") -> str:
        match self.phase:
            case InstallPhase.DOWNLOADING if file:
                number = list(self._totals).index(file) + 1
                return f"Downloading {number}/{len(self._totals)} {self.source}"
            case InstallPhase.EXTRACTING:
                return f"Extracting {self.source}"
        return ""

    def _event(self, shown: str) -> InstallProgress:
        self._seq += 1
        current = sum(self._done.get(self.phase, {}).values())
        total = sum(self._totals.values()) if self.phase in self._done else 0
        return InstallProgress(
            op_id=self._op_id,
            backend=self._backend,
            file_name=shown,
            current=install_size(current) if total else "",
            total=install_size(total) if total else "",
            percentage=self.overall,
            phase=self.phase,
            seq=self._seq,
            current_bytes=current,
            total_bytes=total,
            overall=self.overall,
        )


class Publisher:
    """The first event at once, then the newest at most every 250 ms. One that cannot be sent is lost."""

    def __init__(self, send: SendProgress) -> None:
        self._send = send
        self._waiting: InstallProgress | None = None
        self._news = AutoResetEvent()

    def tell(self, event: InstallProgress) -> None:
        """Never waits: the event takes the place of one that was not sent yet."""
        self._waiting = event
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await self.flush()
            await anyio.sleep(limits.PROGRESS_EVERY_S)

    async def flush(self) -> None:
        """Send what waits, if anything does."""
        event, self._waiting = self._waiting, None
        self._news.clear()
        if event is None:
            return
        try:
            with anyio.move_on_after(limits.PROGRESS_SEND_S):
                await self._send(event)
        except RemudaError as error:
            log.debug("progress_lost", op=event.op_id, reason=error.message)
        except BaseException:
            self._waiting = self._waiting or event  # Cancelled: the last flush tries again.
            raise


@asynccontextmanager
async def publishing(send: SendProgress) -> AsyncIterator[Publisher]:
    """Events of this block are sent meanwhile, and the last one at its end, however it ends."""
    publisher = Publisher(send)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as sender:
            sender.start_soon(publisher.run)
            try:
                yield publisher
            except Exception as error:
                failure = error  # Raised below: a task group would wrap it.
            sender.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.LAST_WORD_S):
            await publisher.flush()
    if failure is not None:
        raise failure


class Outlet:
    """Progress on its way out, as the node that this worker is now and by the bus it has now."""

    def __init__(self) -> None:
        self._node = NodeId("")
        self._publish: Publish | None = None

    def lead_to(self, node: NodeId, publish: Publish) -> None:
        self._node, self._publish = node, publish

    async def send(self, event: InstallProgress) -> None:
        """Raises what the bus does; without one there is no receiver."""
        if self._publish is not None:
            named = event.model_copy(update={"node_id": self._node})
            await self._publish(subjects.install_progress(self._node, event.op_id), encode(named))


WorkKind = Literal["install", "upgrade", "delete", "rollback", "fetch"]
WorkRequest = BackendInstall | BackendUpgrade | BackendDelete | BackendRollback | FilesFetch


class Tally(Protocol):
    """How far an attempt is."""

    @property
    def phase(self) -> str: ...

    @property
    def overall(self) -> float: ...


class RunningAttempt:
    """One request at work. `changed` is called when it enters another phase."""

    def __init__(
        self,
        kind: WorkKind,
        request: WorkRequest,
        publisher: Publisher | None,
        changed: Callable[[], None],
        tally: Tally | None = None,
    ) -> None:
        """Without a tally of its own it goes by the steps of an install."""
        self.op_id = request.op_id
        self.scope = anyio.CancelScope()
        self._kind = kind
        self._request = request
        self._publisher = publisher
        self._changed = changed
        self._backend = "" if isinstance(request, FilesFetch) else request.backend
        self._tally = InstallSteps(request.op_id, self._backend)
        self._told: Tally = tally or self._tally
        self._firm = False

    def comes_from(self, spec: InstallSpec) -> None:
        self._tally.source = next(iter(spec.uris), spec.name)

    def stepped(self, step: ProgressStep) -> None:
        phase = self._tally.phase
        self.tell(self._tally.stepped(step))
        if self._tally.phase is not phase:
            self._changed()

    def arrived(self) -> None:
        """All that was ordered is here: progress that has begun also ends, once."""
        if self._tally.overall < 100.0:
            self.stepped(ProgressStep(PullPhase.EXTRACTING, 100.0))

    def starting(self) -> None:
        self.tell(self._tally.starting())
        self._changed()

    @contextmanager
    def uncancellable(self) -> Iterator[None]:
        """In this block it can no longer be given up: processes come or go."""
        self._firm = True
        try:
            yield
        finally:
            self._firm = False

    def give_up(self) -> bool:
        """Whether it could."""
        if not self._firm:
            self.scope.cancel()
        return not self._firm

    def report(self) -> Work:
        return Work(
            op_id=self.op_id,
            attempt=self._request.attempt,
            kind=self._kind,
            phase=self._told.phase,
            backend=self._backend,
            percentage=self._told.overall,
        )

    def tell(self, event: InstallProgress) -> None:
        """Of the newest only, where they come fast."""
        if self._publisher is not None:
            self._publisher.tell(event)


class WorkInHand:
    """`deliver` returns when the frontend knows what is installed now."""

    def __init__(
        self, send: SendProgress, changed: Callable[[], None], deliver: Callable[[], Awaitable[None]]
    ) -> None:
        self._send = send
        self._changed = changed
        self._deliver = deliver
        self._attempts: list[RunningAttempt] = []

    @asynccontextmanager
    async def attempting(
        self, kind: WorkKind, request: WorkRequest, *, reported: bool = True, tally: Tally | None = None
    ) -> AsyncIterator[RunningAttempt]:
        """Listed while the block lasts. Progress goes out only if the request names an operation; then also
        the frontend is to know what is installed before the reply: a reader of the reply must find it.

        Raises Conflict when it was given up meanwhile.
        """
        async with AsyncExitStack() as stack:
            watched = request.op_id != ""
            publisher = await stack.enter_async_context(publishing(self._send)) if watched else None
            attempt = RunningAttempt(kind, request, publisher, self._changed, tally)
            stack.enter_context(self._listed(attempt))
            try:
                with attempt.scope:
                    yield attempt
            except StartFailed:  # Its files are there, and the report says that they do not start.
                await self._deliver_report(watched and reported)
                raise
            if attempt.scope.cancelled_caught:
                raise Conflict(f"the {kind} was cancelled", hint="what was downloaded is kept")
            await self._deliver_report(watched and reported)

    async def _deliver_report(self, wanted: bool) -> None:
        if wanted:
            with anyio.move_on_after(limits.REPORT_BEFORE_REPLY_S):
                await self._deliver()

    def cancel(self, op_id: str) -> bool:
        """Give up what is at work for this operation; whether there was anything that could be."""
        meant = [attempt for attempt in self._attempts if attempt.op_id == op_id and op_id]
        return any([attempt.give_up() for attempt in meant])

    def report(self) -> tuple[Work, ...]:
        return tuple(attempt.report() for attempt in self._attempts)

    @contextmanager
    def _listed(self, attempt: RunningAttempt) -> Iterator[None]:
        """The log tells of each that it was begun here, and once: operations count on that."""
        work = attempt.report()
        bound_log = log.bind(op=work.op_id, attempt=work.attempt, kind=work.kind, backend=work.backend)
        bound_log.info("work_begun")
        self._attempts.append(attempt)
        self._changed()
        try:
            yield
        finally:
            self._attempts.remove(attempt)
            self._changed()
            bound_log.info("work_ended")
