"""Builds what the web console needs beyond the API: the event stream, sign-in, the last hour, its files."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from remuda import ui
from remuda.accounts.ended_sessions import EndedSessions
from remuda.accounts.keys import KeyRing
from remuda.assembly.operations import FrontendParts
from remuda.assembly.running import background
from remuda.assembly.settings import FrontendSettings
from remuda.bus.client import Bus
from remuda.bus.messages import Connected
from remuda.core.errors import BusUnusable
from remuda.core.settings import described, setting_rows
from remuda.fleet.registry import Registry
from remuda.gateway.events.entities import AccessParts, Entities
from remuda.gateway.events.hub import EventHub, Trouble
from remuda.gateway.history.keeper import HistoryKeeper
from remuda.gateway.services import Console, Ops, Serving
from remuda.gateway.sessions import FailureCount, Sessions
from remuda.gateway.static_files import StaticFiles
from remuda.router.table import Table
from remuda.store.accounts import SqlSecretStore
from remuda.store.ended_sessions import SqlEndedSessionStore
from remuda.wire.console import SettingItem


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """What a frontend has before it serves consoles."""

    frontend: FrontendParts
    registry: Registry
    ops: Ops
    serving: Serving
    keyring: KeyRing
    table: Callable[[], Table]  # That requests are routed by.
    history: HistoryKeeper


@asynccontextmanager
async def open_console(parts: ConsoleParts, origins: Mapping[str, str]) -> AsyncIterator[Console]:
    """`origins`: where each setting comes from, in words; those that are not there are defaults."""
    frontend = parts.frontend
    entities = Entities(
        parts.registry, parts.ops, parts.serving, AccessParts(parts.keyring, parts.table), frontend.clock
    )
    events = EventHub(
        entities.look,
        lambda: parts.ops.feed.news,
        parts.ops.feed.watched,
        partial(_bus_trouble, frontend.bus),
        frontend.clock,
        frontend.entropy.token(6),
    )
    ended = EndedSessions(SqlEndedSessionStore(frontend.database), parts.keyring.sessions_ended)
    async with background(events.run, parts.history.run, ended.run):
        cookie_key = await SqlSecretStore(frontend.database).secret("cookie_key", frontend.entropy.token)
        yield Console(
            Sessions(cookie_key, parts.keyring, ended, frontend.clock, frontend.entropy),
            FailureCount(frontend.clock),
            events,
            entities.attention_now,
            _shown_settings(frontend.settings, origins),
            parts.history,
            StaticFiles(Path(ui.__file__).parent / "static"),
            frontend.frontend,
        )


def _shown_settings(settings: FrontendSettings, origins: Mapping[str, str]) -> tuple[SettingItem, ...]:
    meanings = {item.field: item.setting.help for item in described(type(settings))}
    return tuple(
        SettingItem(
            setting=row.setting,
            value=row.value,
            origin=row.origin,
            help=meanings[row.setting],
            note=row.note,
        )
        for row in setting_rows(settings, origins)
    )


def _bus_trouble(bus: Bus) -> Trouble | None:
    if isinstance(bus.state, Connected):
        return None
    return Trouble(
        BusUnusable.code,
        "this frontend is not connected to the bus: progress and requests of other frontends are not shown",
    )
