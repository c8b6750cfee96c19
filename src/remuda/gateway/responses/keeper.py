"""Keeps responses, and works in the background on those that no client waits for. What is worked on is held
by a lease in the store: should this frontend be killed, it has failed, and is not in progress for ever.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId
from remuda.gateway.responses.event_log import EventLog
from remuda.gateway.responses.event_relay import EventRelay
from remuda.inference.stored_responses import ResponseStore, StoredResponse
from remuda.ops.ports import BusPort
from remuda.router.loading import Overloaded

log = structlog.get_logger()
_ENDED_S: Final = 10.0  # For writing down how one ended.
_SWEEPS_KEPT: Final = 5  # For so many, one a minute, events are known after the end.
_LOGS_BYTES_MAX: Final = 64 << 20  # Of all of these together.
_LOG_BYTES: Final = 64 << 10  # Of one, beside its events.


@dataclass(eq=False)
class BackgroundWork:
    """One response that is worked on. `work` ends soon after `stopped` is set; what it answers is written
    down, None if it was written down already."""

    response_id: str
    work: Callable[["BackgroundWork"], Awaitable[StoredResponse | None]]
    abandoned: StoredResponse  # What it has come to if it is broken off.
    stopped: anyio.Event = field(default_factory=anyio.Event)
    log: EventLog | None = None  # Of one that is streamed.


class ResponseKeeper:
    """`bus`: where this frontend, which is also given, asks others for events; None: there are no others."""

    def __init__(
        self,
        store: ResponseStore,
        retention: timedelta,
        owner_bytes_max: int,
        bus: tuple[BusPort, FrontendId] | None = None,
    ) -> None:
        self.store: Final = store
        self._retention = retention
        self._owner_bytes_max = owner_bytes_max
        self._working = dict[str, BackgroundWork]()
        self._logs = dict[str, EventLog]()  # In the order in which they began.
        self._tasks: TaskGroup | None = None  # While it runs.
        self.relay: Final = None if bus is None else EventRelay(bus[1], bus[0], self.log)

    async def keep(self, kept: StoredResponse, chain: Collection[str]) -> bool:
        """False: it could not be kept, and the log says why."""
        try:
            await self.store.add(kept, chain)
        except RemudaError as error:
            log.warning("response_not_kept", response=kept.id, reason=error.message)
            return False
        return True

    def check_room(self) -> None:
        if len(self._working) >= limits.BACKGROUND_RESPONSES_MAX:
            raise Overloaded(
                f"this frontend works on {len(self._working)} responses in the background, its limit",
                hint="ask again later, or without background",
            )

    def start(self, one: BackgroundWork) -> None:
        assert self._tasks is not None, "it runs for as long as requests are answered"
        self._working[one.response_id] = one
        if one.log is not None:
            self._logs[one.response_id] = one.log
        self._tasks.start_soon(self._work, one)

    def log(self, response_id: str) -> EventLog | None:
        """Its events, if they are known here."""
        return self._logs.get(response_id)

    def stop(self, response_id: str) -> None:
        """Without effect on one that another frontend works on: it finds out by its lease."""
        if (one := self._working.get(response_id)) is not None:
            one.stopped.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._sweep_now_and_then)
            tasks.start_soon(self._renew_leases)
            if self.relay is not None:
                await tasks.start(self.relay.run)
            task_status.started()

    async def _work(self, one: BackgroundWork) -> None:
        ended: StoredResponse | None = one.abandoned
        try:
            ended = await one.work(one)
        finally:
            del self._working[one.response_id]
            if ended is not None and not one.stopped.is_set():
                await self._write_down(ended)
            if one.log is not None:
                one.log.end(None if one.stopped.is_set() else ended)
                self._forget_logs()

    def _forget_logs(self, older: int = 0) -> None:
        """Of responses that have ended: old ones, and those that are too many or too large together."""
        together = 0
        for response_id, log in reversed(list(self._logs.items())):
            if response_id in self._working:
                continue
            log.age += older
            together += log.bytes + _LOG_BYTES
            if log.age > _SWEEPS_KEPT or together > _LOGS_BYTES_MAX:
                del self._logs[response_id]

    async def _write_down(self, ended: StoredResponse) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_ENDED_S):
            try:
                await self.store.finish(ended)
            except RemudaError as error:  # It has failed when its lease runs out.
                log.warning("response_not_kept", response=ended.id, reason=error.message)

    async def _renew_leases(self) -> None:
        while True:
            await anyio.sleep(limits.RESPONSE_LEASE_RENEWED_S)
            if working := tuple(self._working.values()):
                await self._renew(working)

    async def _renew(self, working: Collection[BackgroundWork]) -> None:
        try:
            wanted = await self.store.renew([one.response_id for one in working])
        except RemudaError as error:
            log.warning("response_leases_not_renewed", reason=error.message)
            return
        for one in working:
            if one.response_id not in wanted:  # Cancelled or deleted, perhaps on another frontend.
                one.stopped.set()

    async def _sweep_now_and_then(self) -> None:
        while True:
            self._forget_logs(1)
            try:
                if removed := await self.store.sweep(self._retention, self._owner_bytes_max):
                    log.info("responses_removed", count=removed)
            except RemudaError as error:
                log.warning("responses_not_swept", reason=error.message)
            await anyio.sleep(limits.RESPONSES_SWEPT_EVERY_S)
