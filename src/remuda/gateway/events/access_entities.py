"""Keys, and servers that run without us, as the stream shows them: what consoles need to see that another
has changed something, and no more. A server may have hundreds of models: only their number is here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from remuda.accounts.keys import KeyRing
from remuda.core.clock import Clock
from remuda.gateway.access_views import InFlight, key_view, server_view
from remuda.router.table import Table
from remuda.servers.service import ServerService
from remuda.wire.codec import encode
from remuda.wire.console import KeyEntity, ServerEntity
from remuda.wire.servers import ServerView

_SERVERS_EVERY_S: Final = 2.0  # What they have cost is in the store.


class KeyEntities:
    def __init__(self, keyring: KeyRing) -> None:
        self._keyring = keyring
        self._known: dict[str, tuple[object, bytes]] = {}

    def look(self) -> Mapping[str, bytes]:
        now = self._keyring.now()
        rendered: dict[str, tuple[object, bytes]] = {}
        for key in self._keyring.listed():
            shown = replace(key, last_used_at=_minute(key.last_used_at))
            known, made_of = self._known.get(key.id), (shown, key.state(now))
            if known is None or known[0] != made_of:
                known = made_of, encode(KeyEntity(**dict(key_view(shown, now))))
            rendered[key.id] = known
        self._known = rendered
        return {id: body for id, (_, body) in rendered.items()}


class ServerEntities:
    def __init__(
        self, servers: ServerService, table: Callable[[], Table], in_flight: InFlight, clock: Clock
    ) -> None:
        self._servers = servers
        self._table = table
        self._in_flight = in_flight
        self._clock = clock
        self._rendered: Mapping[str, bytes] = {}
        self._read_s = float("-inf")

    async def look(self) -> Mapping[str, bytes]:
        now_s = self._clock.monotonic()
        if now_s - self._read_s >= _SERVERS_EVERY_S:
            states = await self._servers.as_seen()
            views = [server_view(state, self._table(), self._in_flight) for state in states]
            self._rendered = {view.name: encode(_short(view)) for view in views}
            self._read_s = now_s
        return self._rendered


def _minute(at: datetime | None) -> datetime | None:
    """A key in use would be news every few seconds."""
    return None if at is None else at.replace(second=0, microsecond=0)


def _short(view: ServerView) -> ServerEntity:
    return ServerEntity(
        **{
            **dict(view),
            "id": view.name,
            "asked": view.asked_at is not None,
            "asked_at": None,
            "models": (),
            "models_total": len(view.models),
            "models_refused": sum(bool(model.reason) for model in view.models),
            "in_flight": sum(model.in_flight for model in view.models),
        }
    )
