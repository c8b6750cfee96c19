"""`python -m bench.counted ARGUMENTS`: `remuda ARGUMENTS`, with what it writes to its database counted in a
file that another process may read at any time. The file's path is in BENCH_TALLY."""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.sql.dml import UpdateBase

from remuda.store.schema import metadata

VARIABLE: Final = "BENCH_TALLY"
TRANSACTIONS: Final = "transactions"
STATEMENTS: Final = "statements"
KINDS: Final = (TRANSACTIONS, STATEMENTS, *sorted(metadata.tables))  # Of tables: the rows written.
_WROTE = "bench_wrote"


class Tally:
    """A number for each kind, in a file that both sides map into their memory."""

    def __init__(self, path: Path) -> None:
        size = 8 * len(KINDS)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._lock = threading.Lock()

    def add(self, kind: str, count: int = 1) -> None:
        with self._lock:
            self._numbers[KINDS.index(kind)] += count

    def read(self) -> dict[str, int]:
        return dict(zip(KINDS, self._numbers, strict=True))


def count_writes(tally: Tally) -> None:
    """Of every engine of this process: transactions that wrote, their statements, and rows by table."""

    def executed(
        connection: Connection, cursor: object, _s: str, _p: object, context: object, _m: bool
    ) -> None:
        assert isinstance(context, DefaultExecutionContext)
        statement = context.compiled.statement if context.compiled is not None else None
        if not isinstance(statement, UpdateBase) or str(statement.table) not in metadata.tables:
            return
        connection.info[_WROTE] = True
        tally.add(STATEMENTS)
        tally.add(str(statement.table), max(int(getattr(cursor, "rowcount", 0)), 0))

    def committed(connection: Connection) -> None:
        if connection.info.pop(_WROTE, False):
            tally.add(TRANSACTIONS)

    def rolled_back(connection: Connection) -> None:
        connection.info.pop(_WROTE, None)

    listeners: dict[str, Callable[..., None]] = {
        "after_cursor_execute": executed,
        "commit": committed,
        "rollback": rolled_back,
    }
    for name, listener in listeners.items():
        event.listen(Engine, name, listener)


if __name__ == "__main__":
    from remuda.cli.main import main

    count_writes(Tally(Path(os.environ[VARIABLE])))
    main()
