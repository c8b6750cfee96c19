"""Progress of one install or upgrade: what its steps come to, told often enough to be seen and no more.

Whoever works never waits for the bus: it leaves the newest event behind, and a task of its own sends it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import structlog

from remuda.core.errors import RemudaError
from remuda.core.events import AutoResetEvent
from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.wire.backends import InstallPhase, InstallProgress
from remuda.wire.codec import encode
from remuda.wire.sizes import install_size
from remuda.worker.commands import limits
from remuda.worker.depot.fetch_unpack import ProgressStep
from remuda.worker.ports import Publish

log = structlog.get_logger(__name__)

Send = Callable[[InstallProgress], Awaitable[None]]


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

    def __init__(self, send: Send) -> None:
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
            self._waiting = self._waiting or event  # Cancelled: whoever flushes last tries again.
            raise


@asynccontextmanager
async def publishing(send: Send) -> AsyncIterator[Publisher]:
    """Events told in this block are sent meanwhile, and the last one at its end, however it ends."""
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
        """Raises what the bus does; without one nobody is there to hear it."""
        if self._publish is not None:
            named = event.model_copy(update={"node_id": self._node})
            await self._publish(subjects.install_progress(self._node, event.op_id), encode(named))
