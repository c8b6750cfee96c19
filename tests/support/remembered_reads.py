"""What the database has answered and would answer again, since nobody has written to those tables meanwhile.
Most looks of a simulated fleet find nothing new, and the statements cost more than all else."""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeVar

from sqlalchemy import Engine, event

from remuda.ops.ports import Live
from remuda.scheduler.model import Replicas
from remuda.store.database import Transaction
from remuda.store.ops import SqlOpStore
from remuda.store.schema import metadata

T = TypeVar("T")

TABLES = frozenset(metadata.tables)


class Statements:
    """Which tables the statements of one database name."""

    def __init__(self, engine: Engine) -> None:
        self.named: set[str] = set()
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.named |= _tables_in(statement)

    def of(self, run: Callable[[], T]) -> tuple[T, frozenset[str]]:
        self.named.clear()
        answer = run()
        return answer, frozenset(self.named)


@lru_cache(2000)
def _tables_in(statement: str) -> frozenset[str]:
    """Rather one too many than one too few."""
    return frozenset(re.findall(r"\w+", statement)) & TABLES


@dataclass(frozen=True, slots=True)
class _Known:
    answer: Any
    read: frozenset[str]


class Answers:
    def __init__(
        self, connection: sqlite3.Connection, statements: Statements, now: Callable[[], datetime]
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._now = now
        self._writes = -1
        self._known: dict[Hashable, _Known] = {}
        self._written: Counter[str] = Counter()  # How often, by table.
        self._forgot = 0  # How often all was.

    def of(self, work: Transaction[T], ask: Callable[[], T]) -> T:
        self._notice_others()
        question = _question(work)
        known = self._known.get(question)
        if known is None:
            known = self._known[question] = _Known(*self._statements.of(ask))
        return self._as_of_now(known.answer)  # type: ignore[return-value]  # To the same question.

    def written(self, write: Callable[[], T]) -> T:
        """What was read of other tables stays known."""
        self._notice_others()
        try:
            answer, named = self._statements.of(write)
        except BaseException:
            self._forget_all()
            raise
        if self._writes != self._connection.total_changes:
            self._writes = self._connection.total_changes
            self._written.update(named)
            self._known = {asked: one for asked, one in self._known.items() if not one.read & named}
        return answer

    def state_of(self, *tables: str) -> Hashable:
        """The same for as long as nobody has written to one of these."""
        self._notice_others()
        return self._forgot, *(self._written[table] for table in tables)

    def _notice_others(self) -> None:
        """Who wrote behind our back."""
        if self._writes != self._connection.total_changes:
            self._writes = self._connection.total_changes
            self._forget_all()

    def _forget_all(self) -> None:
        self._forgot += 1
        self._known.clear()

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
