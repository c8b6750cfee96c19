"""Events of responses that another frontend makes in the background, for clients that go on reading here:
asked for on the bus, a part at a time. Any message may be lost: the next question asks for the same again.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from remuda.core.ids import FrontendId
from remuda.gateway.responses.event_log import EventLog
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.wire import subjects
from remuda.wire.response_events import ResponseEventsTold, ResponseEventsWanted

_ANSWERED_S: Final = 1.0  # By the frontend that has the events; later it is asked again.
_PART_BYTES_MAX: Final = 200 << 10  # Of one message.
_ANSWERS_AT_ONCE_MAX: Final = 100


class _Question:
    def __init__(self) -> None:
        self.answer: ResponseEventsTold | None = None
        self.answered = anyio.Event()


class EventRelay:
    """`log` finds the events of a response that is made here."""

    def __init__(
        self,
        frontend: FrontendId,
        bus: BusPort,
        log: Callable[[str], EventLog | None],
        answered_s: float = _ANSWERED_S,
    ) -> None:
        self._frontend = frontend
        self._log = log
        self._answered_s = answered_s
        self._wanted = FrontendSubject(bus, subjects.RESPONSE_EVENTS_WANTED, frontend, ResponseEventsWanted)
        self._told = FrontendSubject(bus, subjects.RESPONSE_EVENTS_TOLD, frontend, ResponseEventsTold)
        self._questions: dict[int, _Question] = {}
        self._numbers = count(1)
        self._tasks: TaskGroup | None = None
        self._answering = 0

    async def ask(self, response_id: str, first: int) -> ResponseEventsTold | None:
        """None: no frontend has said in time that it has them."""
        number, question = next(self._numbers), _Question()
        wanted = ResponseEventsWanted(
            frontend=self._frontend, response_id=response_id, question=number, first=first
        )
        self._questions[number] = question
        try:
            with anyio.move_on_after(self._answered_s):
                if await self._wanted.publish(wanted):
                    await question.answered.wait()
        finally:
            del self._questions[number]
        return question.answer

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._wanted.listen, self._answer)
            tasks.start_soon(self._told.listen, self._hear)
            task_status.started()
            await anyio.sleep_forever()

    def _answer(self, wanted: ResponseEventsWanted) -> None:
        log = self._log(wanted.response_id)
        if log is not None and self._tasks is not None and self._answering < _ANSWERS_AT_ONCE_MAX:
            self._answering += 1
            self._tasks.start_soon(self._tell, wanted, log)

    async def _tell(self, wanted: ResponseEventsWanted, log: EventLog) -> None:
        try:
            events, following, ended = log.part(wanted.first, _PART_BYTES_MAX)
            told = ResponseEventsTold(
                frontend=self._frontend,
                to=wanted.frontend,
                question=wanted.question,
                events=events.decode(),
                next=following,
                ended=ended,
            )
            await self._told.publish(told)
        finally:
            self._answering -= 1

    def _hear(self, told: ResponseEventsTold) -> None:
        question = self._questions.get(told.question)
        if told.to == self._frontend and question is not None:
            question.answer = told
            question.answered.set()
