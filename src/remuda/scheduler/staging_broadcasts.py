"""How far the files of models are on their way to nodes, as frontends tell each other, LocalAI's included
(`staging.<model>.progress`). Lossy: it is for people to see, and nothing is decided by it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import Rejected, RemudaError
from remuda.core.events import AutoResetEvent
from remuda.core.ids import NodeId
from remuda.ops.model import OpId, Step
from remuda.ops.ports import BusMessage, BusPort
from remuda.ops.progress import LiveProgress
from remuda.wire import subjects
from remuda.wire.broadcasts import StagingProgress, StagingStatus
from remuda.wire.codec import decode, encode
from remuda.wire.files import FilePhase
from remuda.wire.sizes import staging_size

log = structlog.get_logger(__name__)

TOLD_EVERY_S: Final = 1.0  # Of bytes alone; the beginning and end of a file are published at once.
FORGOTTEN_S: Final = 60.0  # After the last message of a staging.
_HEARD_MAX: Final = 1000  # Models; the one heard longest ago is forgotten first.
_LOOK_S: Final = 0.1
_FILE: Final = re.compile(r"^\w+ \d{1,6}/\d{1,6} (.+?)(?: \(from [^()]+\))?$")
"""`Copying 1/2 q.gguf (from attic)`"""


class LiveBoard(Protocol):
    """How far attempts at work are."""

    def of(self, op: OpId, node: NodeId) -> LiveProgress | None: ...


def staging_status(
    model: str, node_name: str, live: LiveProgress | None, started_at: datetime
) -> StagingStatus:
    """In the words of the contract; `live` is of the load."""
    if live is None or live.phase not in set(FilePhase):
        return StagingStatus(model_id=model, node_name=node_name, started_at=started_at)
    named = _FILE.match(live.file_name)
    alone, moves = live.file_size > 0, live.phase == FilePhase.STAGING
    done = (live.file_bytes if alone else live.current_bytes) if moves else 0
    total = live.file_size if alone else live.total_bytes
    rate = live.rate_bytes_s if moves else None
    return StagingStatus(
        model_id=model,
        node_name=node_name,
        file_name=named[1] if named else live.file_name.rpartition(" ")[2],
        speed=f"{staging_size(int(rate))}/s" if rate else "",
        message=f"{live.file_name}: {staging_size(done)} of {staging_size(total)}",
        bytes_sent=done,
        total_bytes=total,
        progress=round(100 * live.current_bytes / live.total_bytes, 1) if live.total_bytes and moves else 0.0,
        file_index=live.file_number,
        total_files=live.file_count,
        started_at=started_at,
    )


def is_due(last: StagingStatus | None, now: StagingStatus, since_s: float) -> bool:
    """Whether `now` is to be sent, `since_s` after `last` was."""
    if last is None:
        return True
    complete = now.total_bytes > 0 and now.bytes_sent == now.total_bytes
    file_changed = (now.file_name, now.file_index) != (last.file_name, last.file_index)
    if file_changed or (complete and now.bytes_sent != last.bytes_sent):
        return True
    return since_s >= TOLD_EVERY_S and now != last


@dataclass(slots=True)
class _Own:
    step: Step
    started_at: datetime
    last: StagingStatus | None = None
    last_s: float = 0.0


@dataclass(slots=True)
class _News:
    own: dict[str, _Own] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    heard: dict[str, tuple[float, StagingStatus]] = field(default_factory=dict)


class StagingBroadcasts:
    """`run` it once."""

    def __init__(self, bus: BusPort, board: LiveBoard, clock: Clock) -> None:
        self._bus = bus
        self._board = board
        self._clock = clock
        self._news = _News()
        self._wanted = AutoResetEvent()

    @contextmanager
    def of(self, step: Step, model: str) -> Iterator[None]:
        """The block brings the model's files to the node of the step."""
        self._news.own[model] = own = _Own(step, self._clock.now())
        self._news.ended.pop(model, None)
        self._news.heard.pop(model, None)
        self._wanted.set()
        try:
            yield
        finally:
            if self._news.own.get(model) is own:
                del self._news.own[model]
                self._news.ended[model] = None
                self._wanted.set()

    def heard(self) -> Sequence[StagingStatus]:
        """What other frontends have published lately, by model. Of a model that is being brought by this one,
        nothing: this one knows better."""
        since_s = self._clock.monotonic() - FORGOTTEN_S
        self._news.heard = {one: told for one, told in self._news.heard.items() if told[0] > since_s}
        return [status for _, (_, status) in sorted(self._news.heard.items())]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            task_status.started()
            while True:
                await self._tell()
                if self._news.own:
                    await anyio.sleep(_LOOK_S)
                else:
                    await self._wanted.wait()

    async def _tell(self) -> None:
        """What is over first: the same model may be on its way again."""
        for model in list(self._news.ended):
            del self._news.ended[model]
            await self._publish(StagingProgress(model_id=model, done=True))
        for model, own in list(self._news.own.items()):
            live = self._board.of(own.step.op, own.step.node)
            status, now_s = (
                staging_status(model, own.step.node_name, live, own.started_at),
                self._clock.monotonic(),
            )
            if is_due(own.last, status, now_s - own.last_s):
                own.last, own.last_s = status, now_s
                await self._publish(StagingProgress(model_id=model, status=status))

    async def _publish(self, told: StagingProgress) -> None:
        try:
            await self._bus.publish(subjects.staging_progress(told.model_id), encode(told))
        except RemudaError as error:
            log.debug("staging_not_told", model=told.model_id, reason=error.message)

    async def _listen(self) -> None:
        try:
            await self._bus.subscribe(subjects.ALL_STAGING_PROGRESS, self._hear)
        except RemudaError as error:
            log.warning("staging_not_heard", reason=error.message)

    async def _hear(self, message: BusMessage) -> None:
        try:
            told = decode(StagingProgress, message.payload)
        except Rejected as error:
            log.debug("staging_not_understood", reason=error.message)
            return
        model, heard = told.model_id, self._news.heard
        if model in self._news.own:
            return
        heard.pop(model, None)
        if not told.done and told.status is not None:
            status = told.status.model_copy(update={"model_id": model})
            heard[model] = self._clock.monotonic(), status
            if len(heard) > _HEARD_MAX:
                del heard[next(iter(heard))]
