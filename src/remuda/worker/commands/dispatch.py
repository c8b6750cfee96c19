"""Requests from the bus to their handlers, each in a task of its own, each answered whatever happens.

A request's task belongs to this worker, not to the connection that brought it: losing that ends no install.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError, TooLarge, Unavailable
from remuda.core.ids import NodeId
from remuda.core.tasks import TaskOwner
from remuda.wire.codec import Message, decode, encode
from remuda.worker.commands import limits
from remuda.worker.ports import BusRequest, Hear

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

    `reply` is None where nobody waits for one. Every reply has an `error`, and with nothing else said it is
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
        """Until cancelled; whoever still waits for a reply then is told so."""
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
        """While the bus is away the reply is kept: whoever asked may wait for it still."""
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
