"""Sessions that people have ended by signing out. Cookies are checked without the store, so the few that
were ended early are kept in memory, by their ids, until they would have ended by themselves; kept up to date
by each sign-out here and, for those elsewhere, by timer.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError

log = structlog.get_logger()


class EndedSessionStore(Protocol):
    async def ended_sessions(self) -> Mapping[str, datetime]:
        """Their ids, and until when each has to be known."""
        ...

    async def end_session(self, session_id: str, until: datetime) -> None:
        """Ending one twice changes nothing. Unavailable when too many are kept already."""
        ...


class EndedSessions:
    """`ended` is called when there are more of them."""

    def __init__(self, store: EndedSessionStore, ended: Callable[[], None]) -> None:
        self._store = store
        self._ended = ended
        self._changing = anyio.Lock()  # Else a slow refresh could bring back a session ended meanwhile.
        self._known: Mapping[str, datetime] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._known

    async def refresh(self) -> None:
        async with self._changing:
            self._hold(await self._store.ended_sessions())

    async def end(self, session_id: str, until: datetime) -> None:
        """In force here when this returns, elsewhere within a second."""
        async with self._changing:
            await self._store.end_session(session_id, until)
            self._hold({**self._known, session_id: until})

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started once those known to the store are known here."""
        await self.refresh()
        task_status.started()
        while True:
            await anyio.sleep(limits.KEYS_REFRESH_EVERY_S)
            try:
                await self.refresh()
            except RemudaError as error:  # Those known so far stay ended.
                log.warning("ended_sessions_not_refreshed", reason=error.message)

    def _hold(self, known: Mapping[str, datetime]) -> None:
        more = known.keys() - self._known.keys()
        self._known = known
        if more:
            self._ended()
