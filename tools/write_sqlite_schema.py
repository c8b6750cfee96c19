"""Write `src/remuda/store/new_sqlite.sql` after a migration was added or changed.

    uv run --group dev python -m tools.write_sqlite_schema

A new SQLite database is made from that file; a test compares it with what the migrations make.
"""

import sqlite3
import tempfile
from pathlib import Path

from sqlalchemy import URL, create_engine

from remuda.core.clock import SystemClock
from remuda.store.database import upgrade
from remuda.store.new_sqlite import FILE, first_line
from remuda.store.schema import SCHEMA_VERSION, schema_info

_WITH_EACH_DATABASE = f'INSERT INTO "{schema_info.name}"'  # Its time differs.
_AROUND = ("BEGIN TRANSACTION;", "COMMIT;")


def migrated() -> str:
    """What migrations make of an empty file, as statements."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "remuda.db")
        engine = create_engine(URL.create("sqlite", database=str(path)))
        with engine.begin() as connection:
            upgrade(connection, SystemClock().now())
        engine.dispose()
        return dump(path)


def dump(path: Path) -> str:
    """All statements that make this database again, but for the row of its version."""
    connection = sqlite3.connect(path)
    try:
        statements = [
            statement
            for statement in connection.iterdump()
            if statement not in _AROUND and not statement.startswith(_WITH_EACH_DATABASE)
        ]
    finally:
        connection.close()
    lines = "\n".join(statements).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)  # SQLAlchemy ends many with a space.


def main() -> None:
    FILE.write_text(f"{first_line(SCHEMA_VERSION)}\n{migrated()}", encoding="utf-8")
    print(f"wrote {FILE.name}, schema version {SCHEMA_VERSION}")


if __name__ == "__main__":
    main()
