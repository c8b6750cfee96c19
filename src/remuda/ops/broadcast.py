"""What frontends say to each other: that something has changed, questions, and answers to them.

Any message may be lost. A lost change costs one interval, since each frontend also reads what is stored now
and then; a lost question or answer costs the time that the question waits.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Final, Generic, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.errors import Rejected, RemudaError
from remuda.core.events import Notifier
from remuda.core.ids import FrontendId
from remuda.ops.ports import BusMessage, BusPort
from remuda.wire import subjects
from remuda.wire.broadcasts import ChangeMessage, FrontendAnswer, FrontendMessage
from remuda.wire.codec import decode, encode

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=FrontendMessage)
Q = TypeVar("Q", bound=FrontendMessage)
A = TypeVar("A", bound=FrontendAnswer)


class FrontendSubject(Generic[M]):
    """One subject on which frontends publish to each other. `undecodable` stands for each message that cannot
    be decoded; None: those are dropped."""

    def __init__(
        self,
        bus: BusPort,
        subject: str,
        frontend: FrontendId,
        kind: type[M],
        *,
        undecodable: M | None = None,
    ) -> None:
        self._bus = bus
        self._subject = subject
        self.frontend: Final = frontend
        self._kind = kind
        self._undecodable = undecodable

    async def publish(self, message: M) -> bool:
        """Whether it was sent."""
        try:
            await self._bus.publish(self._subject, encode(message))
        except RemudaError as error:
            log.debug("change_not_published", subject=self._subject, reason=error.message)
            return False
        return True

    async def listen(self, receive: Callable[[M], None]) -> None:
        """Subscribes. `receive` gets what other frontends publish."""

        async def handle(message: BusMessage) -> None:
            decoded = self._decoded(message)
            if decoded is not None and decoded.frontend != self.frontend:
                receive(decoded)

        try:
            await self._bus.subscribe(self._subject, handle)
        except RemudaError as error:
            log.warning("changes_not_received", subject=self._subject, reason=error.message)

    def _decoded(self, message: BusMessage) -> M | None:
        try:
            return decode(self._kind, message.payload)
        except Rejected as error:
            log.warning("change_not_decoded", subject=self._subject, reason=error.message)
            return self._undecodable


_QUESTIONS_MAX: Final = 1000  # Of one kind that wait for answers; one more finds none.
_ANSWERS_AT_ONCE_MAX: Final = 100


class _Question(Generic[A]):
    def __init__(self, receive: Callable[[A], bool]) -> None:
        self.receive: Final = receive
        self.over: Final = anyio.Event()


class FrontendQuestions(Generic[Q, A]):
    """One kind of question, asked of all other frontends and answered to them.

    `topic` is what a question and its answers have in common. `answer` makes this frontend's own answer, or
    None if it has nothing to say. A question waits for answers for `answered_s`.
    """

    def __init__(
        self,
        questions: FrontendSubject[Q],
        answers: FrontendSubject[A],
        *,
        topic: Callable[[Q | A], Hashable],
        answer: Callable[[Q], A | None],
        answered_s: float,
    ) -> None:
        self._questions = questions
        self._answers = answers
        self._topic = topic
        self._answer = answer
        self._answered_s = answered_s
        self._open = defaultdict[Hashable, list[_Question[A]]](list)
        self._tasks: TaskGroup | None = None
        self._answering = 0

    async def ask(self, question: Q, receive: Callable[[A], bool]) -> None:
        """Until `receive`, which gets each answer, returns True, or its time is up."""
        topic, asked = self._topic(question), _Question(receive)
        if sum(map(len, self._open.values())) >= _QUESTIONS_MAX:
            return
        self._open[topic].append(asked)
        try:
            with anyio.move_on_after(self._answered_s):
                if await self._questions.publish(question):
                    await asked.over.wait()
        finally:
            self._open[topic].remove(asked)
            if not self._open[topic]:
                del self._open[topic]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._questions.listen, self._asked)
            tasks.start_soon(self._answers.listen, self._answered)
            task_status.started()
            await anyio.sleep_forever()

    def _asked(self, question: Q) -> None:
        if self._tasks is None or self._answering >= _ANSWERS_AT_ONCE_MAX:
            return
        if (own := self._answer(question)) is not None:
            self._answering += 1
            self._tasks.start_soon(self._publish, own)

    async def _publish(self, own: A) -> None:
        try:
            await self._answers.publish(own)
        finally:
            self._answering -= 1

    def _answered(self, answer: A) -> None:
        if answer.to != self._answers.frontend:
            return
        for asked in self._open.get(self._topic(answer), ()):
            if asked.receive(answer):
                asked.over.set()


_GAP: Final = timedelta(milliseconds=100)


class OpsChanged(ChangeMessage):
    """Frontend to frontends, ours: look at the operations again."""


class ChangeSignal:
    """Wakes what waits for changed operations, on every frontend."""

    def __init__(self, bus: BusPort, frontend: FrontendId, gap: timedelta = _GAP) -> None:
        self._frontend = frontend
        self._changes = Notifier()
        self._subject = FrontendSubject(
            bus, subjects.OPS_CHANGED, frontend, OpsChanged, undecodable=OpsChanged()
        )
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=gap.total_seconds())

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change. Take it before looking at the store, and none is missed."""
        return self._changes.changed

    def notify(self) -> None:
        """Something was written. Never waits."""
        self._changes.notify()
        self._broadcast.send()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._subject.listen, self._receive)
            task_status.started()
            await self._broadcast.run()

    async def _publish(self) -> bool:
        return await self._subject.publish(OpsChanged(frontend=self._frontend))

    def _receive(self, _: OpsChanged) -> None:
        self._changes.notify()
