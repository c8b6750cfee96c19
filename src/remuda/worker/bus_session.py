"""The bus connection by which commands reach this worker, under its registered node id.

It follows the registration: another node id or address means another connection, other credentials a move.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta

import anyio
import structlog

from remuda.core import limits
from remuda.core.bus_reach import UnreachedBus
from remuda.core.entropy import Entropy
from remuda.core.errors import BusRefused
from remuda.core.events import ObservableValue
from remuda.core.ids import NodeId
from remuda.core.retry import Backoff
from remuda.wire import subjects
from remuda.worker.enrolment import Enrolment, EnrolmentStatus
from remuda.worker.ports import BusHandlers, BusRequest, BusTarget, Hear, OpenBus, Publish, WorkerBus
from remuda.worker.registration import Registration

log = structlog.get_logger(__name__)

_ASK = Backoff(timedelta(seconds=limits.BUS_DOWN_ASK_FIRST_S), timedelta(seconds=limits.BUS_DOWN_ASK_MOST_S))
_RESUBSCRIBE = Backoff(
    timedelta(seconds=limits.RESUBSCRIBE_FIRST_S), timedelta(seconds=limits.RESUBSCRIBE_MOST_S)
)


class NoListener:
    """For a worker that can only be asked to stop."""

    def handlers(self, node: NodeId, publish: Publish) -> Mapping[str, Hear]:
        return {}


class BusSession:
    def __init__(
        self,
        open_bus: OpenBus,
        registration: Registration,
        on_stop: Callable[[], None],
        entropy: Entropy,
        listener: BusHandlers | None = None,
    ) -> None:
        self.reachable_as: ObservableValue[NodeId | None] = ObservableValue(None)
        self.trouble = ObservableValue(
            ""
        )  # Why it does not work; empty, too, before there is any use in connecting.
        self.unreached: UnreachedBus | None = None  # Where, if it is that no connection comes about.
        self._open_bus = open_bus
        self._registration = registration
        self._on_stop = on_stop
        self._listener = listener or NoListener()
        self._entropy = entropy
        self._deafness = ""  # Why commands cannot reach us although the bus is connected.

    async def run(self) -> None:
        """Until cancelled. Raises Misconfigured for a bus address that cannot be used."""
        while True:
            standing = await self._registration.standing.until(lambda now: _session(now) is not None)
            assert standing.enrolment is not None, "a session has an enrolment"
            target = BusTarget(standing.enrolment.bus_url, lambda: self._registration.credentials)
            await self._hold(self._open_bus(target), standing.enrolment)

    async def _hold(self, bus: WorkerBus, enrolment: Enrolment) -> None:
        """Serve one connection for as long as it is the right one."""
        node, session = enrolment.node_id, (enrolment.node_id, enrolment.bus_url)
        self._deafness = "the subscription is not confirmed yet"
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(bus.run)
                tasks.start_soon(self._watch, bus, node)
                tasks.start_soon(self._look_again, bus, node)
                tasks.start_soon(self._follow_credentials, bus)
                tasks.start_soon(self._ask_while_unreachable)
                tasks.start_soon(self._subscribe, bus, node)
                await self._registration.standing.until(lambda now: _session(now) != session)
                tasks.cancel_scope.cancel()
        finally:
            self.reachable_as.set(None)
            self.trouble.set("")

    async def _subscribe(self, bus: WorkerBus, node: NodeId) -> None:
        """To everything: a worker that receives only some commands is not reachable. Side by side, for
        each takes a round trip, and links may be slow."""
        handlers: dict[str, Hear] = {subjects.node_stop(node): self._stop_heard}
        handlers.update(self._listener.handlers(node, bus.publish))
        async with anyio.create_task_group() as subscribing:
            for subject, hear in handlers.items():
                subscribing.start_soon(self._subscribe_to, bus, node, subject, hear)
        self._deafness = ""
        self._note(bus, node)

    async def _subscribe_to(self, bus: WorkerBus, node: NodeId, subject: str, hear: Hear) -> None:
        attempt = 0
        while True:
            try:
                return await bus.subscribe(subject, hear)
            except BusRefused as refusal:
                log.error("subscription_refused", node=node, reason=refusal.message)
                self._deafness = refusal.message
            self._note(bus, node)
            attempt += 1  # Other credentials may come with the next registration.
            await anyio.sleep(_RESUBSCRIBE.delay(attempt, self._entropy.fraction()).total_seconds())

    async def _stop_heard(self, _: BusRequest) -> None:
        self._on_stop()

    async def _watch(self, bus: WorkerBus, node: NodeId) -> None:
        while True:
            changed = bus.changed
            self._note(bus, node)
            await changed.wait()

    async def _look_again(self, bus: WorkerBus, node: NodeId) -> None:
        """A first attempt that takes long says nothing until it is over; by then people have wondered."""
        await anyio.sleep(limits.BUS_SLOW_S)
        self._note(bus, node)

    def _note(self, bus: WorkerBus, node: NodeId) -> None:
        trouble = bus.trouble or self._deafness
        self.unreached = bus.unreached
        self.reachable_as.set(None if trouble else node)
        self.trouble.set(trouble)

    async def _follow_credentials(self, bus: WorkerBus) -> None:
        used = self._registration.credentials
        async for _ in self._registration.standing.changes():
            if self._registration.credentials != used:
                used = self._registration.credentials
                bus.rotate()

    async def _ask_while_unreachable(self) -> None:
        """The bus may have moved, or our credentials may have run out while this machine slept."""
        asked_times = 0
        while True:
            if self.reachable_as.value is not None:
                asked_times = 0
                await self.reachable_as.until(lambda node: node is None)
            asked_times += 1
            with anyio.move_on_after(_ASK.delay(asked_times, self._entropy.fraction()).total_seconds()):
                await self.reachable_as.until(lambda node: node is not None)
                continue
            self._registration.bus_lost()


def _session(standing: EnrolmentStatus) -> tuple[NodeId, str] | None:
    """What a connection belongs to; None while there is no use in connecting."""
    enrolment = standing.enrolment
    return (enrolment.node_id, enrolment.bus_url) if enrolment and enrolment.bus_usable else None
