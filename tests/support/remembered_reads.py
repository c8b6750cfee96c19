"""What the database has answered and would answer again, since nobody has written meanwhile. Most looks of a
simulated fleet find nothing new, and the statements cost more than all else."""

import sqlite3
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import datetime
from types import FunctionType
from typing import TypeVar

from remuda.ops.ports import Live
from remuda.scheduler.model import Replicas
from remuda.store.database import Transaction
from remuda.store.ops import SqlOpStore

T = TypeVar("T")


class Answers:
    def __init__(self, connection: sqlite3.Connection, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._now = now
        self._writes = -1
        self._known: dict[Hashable, object] = {}

    def of(self, work: Transaction[T], ask: Callable[[], T]) -> T:
        if self._writes != self._connection.total_changes:
            self._writes = self._connection.total_changes
            self._known.clear()
        question = _question(work)
        if question not in self._known:
            self._known[question] = ask()
        return self._as_of_now(self._known[question])  # type: ignore[return-value]  # To the same question.

    def _as_of_now(self, answer: object) -> object:
        """Two kinds of answers tell the time."""
        if isinstance(answer, Replicas | Live):
            return replace(answer, now=self._now())
        return answer


def _question(work: Transaction[T]) -> Hashable:
    """The same statements about the same things, whichever frontend asks."""
    assert isinstance(work, FunctionType), "whoever reads gives a function"
    about = (cell.cell_contents for cell in work.__closure__ or ())
    return work.__code__, *(one for one in about if not isinstance(one, SqlOpStore))
