"""Events of responses that another frontend makes in the background, for clients that go on reading here:
asked for on the bus, a part at a time. Any message may be lost: the next question asks for the same again.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

import anyio
from anyio.abc import TaskStatus

from remuda.core.ids import FrontendId
from remuda.gateway.responses.event_log import EventLog
from remuda.ops.broadcast import FrontendQuestions, FrontendSubject
from remuda.ops.ports import BusPort
from remuda.wire import subjects
from remuda.wire.response_events import ResponseEventsTold, ResponseEventsWanted

_ANSWERED_S: Final = 1.0  # By the frontend that has the events; later it is asked again.
_PART_BYTES_MAX: Final = 200 << 10  # Of one message.


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
        self._numbers = count(1)
        self._questions = FrontendQuestions(
            FrontendSubject(bus, subjects.RESPONSE_EVENTS_WANTED, frontend, ResponseEventsWanted),
            FrontendSubject(bus, subjects.RESPONSE_EVENTS_TOLD, frontend, ResponseEventsTold),
            topic=lambda message: message.question,
            answer=self._answer,
            answered_s=answered_s,
        )

    async def ask(self, response_id: str, first: int) -> ResponseEventsTold | None:
        """None: no frontend has said in time that it has them."""
        answers: list[ResponseEventsTold] = []

        def receive(answer: ResponseEventsTold) -> bool:
            answers.append(answer)
            return True

        question = ResponseEventsWanted(
            frontend=self._frontend, response_id=response_id, question=next(self._numbers), first=first
        )
        await self._questions.ask(question, receive)
        return answers[0] if answers else None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._questions.run(task_status=task_status)

    def _answer(self, wanted: ResponseEventsWanted) -> ResponseEventsTold | None:
        log = self._log(wanted.response_id)
        if log is None:
            return None
        events, following, ended = log.part(wanted.first, _PART_BYTES_MAX)
        return ResponseEventsTold(
            frontend=self._frontend,
            to=wanted.frontend,
            question=wanted.question,
            events=events.decode(),
            next=following,
            ended=ended,
        )
