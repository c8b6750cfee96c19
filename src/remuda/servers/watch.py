"""Adopted servers, as this frontend sees them: read from the store now and then, each asked for its models
every few seconds, and at once when a request could not be answered there."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.events import AutoResetEvent
from remuda.core.tasks import TaskOwner
from remuda.inference.failures import RateLimited, Unaffordable, UpstreamFailed
from remuda.models.config import ModelConfig
from remuda.router.live_table import Tables
from remuda.router.table import Route, RouteId, Table
from remuda.servers.model import (
    AdoptedServer,
    Condition,
    Server,
    ServerStore,
    ServerUnusable,
    answered,
    missed,
)
from remuda.servers.probing import TooSlow
from remuda.servers.routing import is_upstream, with_servers

log = structlog.get_logger(__name__)

_READ_EVERY_S: Final = 2.0
_ASK_EVERY_S: Final = 10.0
_ABSENT_EVERY_S: Final = 2.0
_VERDICT_S: Final = 10.0
_PAUSE_MAX_S: Final = 60.0  # Of a server that says it is asked too often.


@dataclass(frozen=True, slots=True)
class SuspectRoute:
    """A model of a server that failed a request. `until_s`: it is left alone until then, as it asked; None:
    it is being asked how it is. `over`: set when it may be chosen again, or is known to be absent."""

    route: Route
    why: UpstreamFailed
    over: anyio.Event
    until_s: float | None = None
    retry_s: float = 0.0  # By the same clock, from when on it is willing to answer.
    shown: str = ""  # Why it is not used, for admins.

    @property
    def reason(self) -> str:
        return f"a request to the server {self.route.server} failed a moment ago: {self.why.message}"


class ServerProber(Protocol):
    async def models(self, server: Server) -> tuple[str, ...]: ...


class ServerWatch:
    """`refresh` makes the table anew, when what is known of servers has changed."""

    def __init__(
        self,
        store: ServerStore,
        prober: ServerProber,
        tables: Tables,
        clock: Clock,
        refresh: Callable[[], Awaitable[None]],
        *,
        ask_every_s: float = _ASK_EVERY_S,
    ) -> None:
        self._store = store
        self._prober = prober
        self._tables = tables
        self._clock = clock
        self._refresh = refresh
        self._ask_every_s = ask_every_s
        self._servers: tuple[Server, ...] = ()
        self._conditions: dict[str, Condition] = {}
        self._asked_s: dict[str, float] = {}
        self._asking: dict[str, anyio.Event] = {}
        self._suspects: dict[RouteId, SuspectRoute] = {}
        self._tasks = TaskOwner()
        self._wanted = AutoResetEvent()
        # One at a time: an older reading that ends later would bring back what was removed meanwhile.
        self._reading = anyio.Lock()

    def adopted(self) -> Sequence[AdoptedServer]:
        return [
            AdoptedServer(server, self._conditions.get(server.name, Condition())) for server in self._servers
        ]

    def extended(self, table: Table) -> Table:
        """With the servers, as they are now."""
        return with_servers(table, self.adopted()) if self._servers or _listed(table) else table

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with self._tasks.open():
            task_status.started()
            while True:
                await self._read()
                for server in self._servers:
                    if self._is_due(server.name):
                        self._ask(server)
                with anyio.move_on_after(min(_READ_EVERY_S, self._ask_every_s)):
                    await self._wanted.wait()

    async def changed(self) -> None:
        """Servers were added, edited or removed here: returns when requests go by that."""
        await self._read()
        self._wanted.set()

    async def asked(self, name: str) -> None:
        """Ask it now, and return with its answer, or when none has come for long enough."""
        server = next((one for one in self._servers if one.name == name), None)
        if server is not None and self._tasks.is_open:
            self._ask(server)
            with anyio.move_on_after(_VERDICT_S):
                await self._asking[name].wait()

    # Failures of requests.

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        """Not to be chosen until it has answered again, or its pause is over."""
        if isinstance(why, Unaffordable) or not self._tasks.is_open or route.id in self._suspects:
            return
        suspect = SuspectRoute(route, why, anyio.Event())
        if isinstance(why, RateLimited):
            now_s, pause_s = self._clock.monotonic(), min(why.retry_after_s, _PAUSE_MAX_S)
            until = self._clock.now() + timedelta(seconds=math.ceil(pause_s))
            shown = f"left alone until {until:%H:%M:%S} UTC: {why.message}"
            suspect = replace(
                suspect, until_s=now_s + pause_s, retry_s=now_s + why.retry_after_s, shown=shown
            )
        self._suspects[route.id] = suspect
        self._tables.leave_out(route)
        self._tasks.start(self._look, suspect)

    def suspects(self, config: ModelConfig) -> Sequence[SuspectRoute]:
        """Where requests for this model would go, and do not for the moment."""
        return [one for one in self._suspects.values() if is_upstream(config, one.route)]

    def unused(self, server: str) -> Mapping[str, str]:
        """Why no request goes to these of its models for the moment, though it answers."""
        return {
            one.route.endpoint.model: one.shown or one.reason
            for one in self._suspects.values()
            if one.route.server == server
        }

    async def looked_at(self, suspects: Sequence[SuspectRoute]) -> None:
        """Returns when it is known how they are, or after a while."""
        with anyio.move_on_after(_VERDICT_S):
            for suspect in suspects:
                await suspect.over.wait()

    async def gone(self, route: Route) -> bool:
        """Whether it cannot be asked now, once that is known."""
        if (looking := self._suspects.get(route.id)) is not None:
            await self.looked_at([looking])
        return not self._tables.has(route)

    async def _look(self, suspect: SuspectRoute) -> None:
        route = suspect.route
        try:
            if suspect.until_s is not None:
                await anyio.sleep(suspect.until_s - self._clock.monotonic())
            else:
                log.warning("server_suspected", server=route.server, reason=suspect.why.message)
                await self.asked(route.server)
        finally:
            self._tables.take_back(route)
            self._suspects.pop(route.id).over.set()

    # Looking.

    async def _read(self) -> None:
        async with self._reading:
            await self._take_over()

    async def _take_over(self) -> None:
        try:
            servers = await self._store.servers()
        except RemudaError as error:  # Those known so far go on being asked.
            log.debug("servers_not_read", reason=error.message)
            return
        if servers == self._servers:
            return
        before = {server.name: server for server in self._servers}
        for server in servers:
            if before.get(server.name) != server:  # Another address or key: what was seen is of the other.
                self._conditions.pop(server.name, None)
                self._asked_s.pop(server.name, None)
        self._servers = servers
        await self._renew()

    def _is_due(self, name: str) -> bool:
        asked_s = self._asked_s.get(name)
        every_s = self._ask_every_s if self._conditions.get(name, Condition()).up else _ABSENT_EVERY_S
        return asked_s is None or self._clock.monotonic() - asked_s >= min(every_s, self._ask_every_s)

    def _ask(self, server: Server) -> None:
        if server.name in self._asking:
            return
        self._asking[server.name] = anyio.Event()
        self._asked_s[server.name] = self._clock.monotonic()
        self._tasks.start(self._asked, server)

    async def _asked(self, server: Server) -> None:
        try:
            await self._note(server, await self._seen(server))
        finally:
            self._asking.pop(server.name).set()

    async def _seen(self, server: Server) -> Condition:
        before = self._conditions.get(server.name, Condition())
        try:
            models = await self._prober.models(server)
        except ServerUnusable as error:
            return missed(before, error.message, self._clock.now(), slow=isinstance(error, TooSlow))
        return answered(before, models, self._clock.now())

    async def _note(self, server: Server, condition: Condition) -> None:
        if server not in self._servers:  # It was edited or removed meanwhile.
            return
        before = self._conditions.get(server.name, Condition())
        self._conditions[server.name] = condition
        if (before.reason, before.models) != (condition.reason, condition.models):
            _log_change(server.name, before, condition)
            await self._renew()

    async def _renew(self) -> None:
        try:
            await self._refresh()
        except RemudaError as error:  # The next reading of the table has it.
            log.debug("table_not_renewed", reason=error.message)


def _listed(table: Table) -> bool:
    return any(entry.config.upstreams for entry in table.models.values())


def _log_change(name: str, before: Condition, now: Condition) -> None:
    if not now.up:
        log.warning("server_absent", server=name, reason=now.reason)
    elif not before.up:
        log.info("server_present", server=name, models=len(now.models))
