"""EndedSessionStore on SQL. Rows that no cookie can outlive are removed when the next one is written."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select

from remuda.core import limits
from remuda.core.errors import Unavailable
from remuda.store.database import Database
from remuda.store.schema import ended_sessions


class SqlEndedSessionStore:
    """Implements accounts.ended_sessions.EndedSessionStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ended_sessions(self) -> Mapping[str, datetime]:
        return await self._database.read(lambda c, now: _ended(c, now))

    async def end_session(self, session_id: str, until: datetime) -> None:
        await self._database.transact(lambda c, now: _end(c, now, session_id, until))


def _ended(connection: Connection, now: datetime) -> dict[str, datetime]:
    rows = connection.execute(select(ended_sessions).where(ended_sessions.c.until > now))
    return {row.id: row.until for row in rows}


def _end(connection: Connection, now: datetime, session_id: str, until: datetime) -> None:
    connection.execute(delete(ended_sessions).where(ended_sessions.c.until <= now))
    known = select(ended_sessions.c.id).where(ended_sessions.c.id == session_id)
    if connection.execute(known).first() is not None:
        return
    if (
        connection.scalar(select(func.count()).select_from(ended_sessions)) or 0
    ) >= limits.ENDED_SESSIONS_MAX:
        raise Unavailable(
            f"this session was not ended: {limits.ENDED_SESSIONS_MAX} others were ended within a week",
            hint="revoke its key, which ends all of its sessions",
        )
    # Two frontends may both come here; the primary key lets one of them write, and the other looks again.
    connection.execute(insert(ended_sessions).values(id=session_id, until=until))
