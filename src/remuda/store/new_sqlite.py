"""A new SQLite database at once, from `new_sqlite.sql`: what all migrations together make of an empty file.

Most starts that migrate have nothing to migrate. Alembic would cost them half a second, and the process some
10 MB for as long as it runs. `tools/write_sqlite_schema.py` writes the file; a test compares it with what the
migrations make.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

FILE: Final = Path(__file__).with_name("new_sqlite.sql")
_FIRST_LINE: Final = "-- Schema version "


def first_line(version: int) -> str:
    return f"{_FIRST_LINE}{version}"


def create(connection: Connection, version: int) -> bool:
    """Fill an empty SQLite database, all but the row of its version. False, with nothing done, for any other
    one, and where the file was written for another version than this."""
    if connection.dialect.name != "sqlite" or _has_tables(connection):
        return False
    head, _, script = FILE.read_text(encoding="utf-8").partition("\n")
    if head != first_line(version):
        return False
    for statement in _statements(script):
        connection.exec_driver_sql(statement)
    return True


def _has_tables(connection: Connection) -> bool:
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first() is not None


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
