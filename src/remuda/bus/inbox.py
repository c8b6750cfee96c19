"""Requests that wait for their replies. They belong to the bus, not to one of its connections: a reply is
matched whichever connection it arrives on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from remuda.bus.messages import Incoming
from remuda.core.entropy import Entropy
from remuda.wire import subjects

_QUESTION_BYTES = 16  # They cannot be guessed.


@dataclass(eq=False, slots=True)
class Question:
    inbox: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Incoming | None = None


class Inbox:
    """Implements Receiver. `asker` is part of every inbox: one subscription hears all answers to it."""

    divided = False  # The server tells that nobody listens only to whom it divides nothing.

    def __init__(self, asker: str, key: str, entropy: Entropy) -> None:
        self.subject = subjects.replies_to(asker)
        self.key = key
        self.dropped = 0
        self._asker = asker
        self._entropy = entropy
        self._waiting: dict[str, Question] = {}

    @contextmanager
    def question(self, subject: str) -> Iterator[Question]:
        """For a request on this subject; an answer that comes after the block is dropped."""
        unique = self._entropy.token(_QUESTION_BYTES)
        asked = Question(subjects.reply(subjects.asked_node(subject), self._asker, unique))
        self._waiting[asked.inbox] = asked
        try:
            yield asked
        finally:
            del self._waiting[asked.inbox]

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
        """The first answer counts."""
        question = self._waiting.get(message.subject)
        if question is not None and question.answer is None:
            question.answer = message
            question.answered.set()
        done()

    def close(self) -> None:
        self._waiting.clear()
