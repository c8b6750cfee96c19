"""The bus between frontends and workers: it loses, delays, repeats and reorders, and is down at times."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import anyio

from remuda.bus.messages import NoResponders, RequestTimedOut
from remuda.core.errors import BusUnusable
from remuda.core.ids import NodeId
from remuda.ops.ports import BusMessage
from tests.sim.chance import Dice
from tests.sim.ops.world import World

_HOP_S = 0.002  # To the server and back.

Handler = Callable[[BusMessage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    payload: bytes


@dataclass(slots=True, eq=False)
class Question:
    """A request that waits for its answer."""

    over: anyio.Event = field(default_factory=anyio.Event)
    answer: bytes | None = None
    line_lost: bool = False
    on_gap: Callable[[], None] | None = None  # Whoever asked waits on after its line was lost.

    def settle(self, answer: bytes) -> None:
        if not self.over.is_set():
            self.answer = answer
            self.over.set()

    def lose_line(self) -> None:
        if self.on_gap is not None:
            self.on_gap()
        else:
            self.line_lost = True
            self.over.set()


class SimulatedBus:
    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice.fork("bus")
        self._listeners: dict[str, list[Handler]] = {}

    def listen(self, subject: str, handler: Handler) -> None:
        self._listeners.setdefault(subject, []).append(handler)

    def forget(self, handler: Handler) -> None:
        for handlers in self._listeners.values():
            if handler in handlers:
                handlers.remove(handler)

    def publish(self, subject: str, payload: bytes, heard_by: str = "") -> None:
        """`heard_by` is what is subscribed to where that is not the subject itself."""
        if not self._world.bus_up:
            return
        wanted, message = heard_by or subject, Message(subject, payload)
        for handler in self._listeners.get(wanted, ()):
            for _ in range(2 if self.befalls("repeated", subject) else 1):
                if not self.befalls("lost", subject):
                    self._world.tasks.start_soon(self._deliver, wanted, handler, message)

    async def _deliver(self, wanted: str, handler: Handler, message: Message) -> None:
        await self.travel(message.subject)
        if handler in self._listeners[wanted] and self._world.bus_up:
            await handler(message)

    def tell(self, node: NodeId, verb: str, payload: bytes) -> None:
        """To one worker, which answers nothing."""
        if not self.befalls("lost", f"{node} {verb}"):
            self._world.tasks.start_soon(self._bring, node, verb, payload)

    async def _bring(self, node: NodeId, verb: str, payload: bytes) -> None:
        await self.travel(f"{node} {verb}")
        worker = self._world.workers.get(node)
        if worker is not None and worker.hears(verb) and self._world.bus_up:
            worker.hear(verb, payload, lambda answer: None)

    async def travel(self, subject: str) -> None:
        late = self.befalls("late", subject)
        usual_s = self._dice.between(1.0, self._world.pace.late_most_s) if late else 0.005
        await anyio.sleep(usual_s + self._world.slowness_s(subject))

    def befalls(self, trouble: str, subject: str) -> bool:
        if not self._dice.chance(getattr(self._world.weather, trouble)):
            return False
        self._world.trace.fault(f"message_{trouble}", subject)
        return True

    def fails_loudly(self) -> bool:
        """Whether a lost message is noticed by its sender, as a broken connection is."""
        return self._dice.chance(0.5)


class LinesOfFrontend:
    """Implements ops.ports.BusPort and TapPort for one life of a frontend."""

    def __init__(self, world: World, bus: SimulatedBus, dice: Dice, die: Callable[[str], None]) -> None:
        self._world = world
        self._bus = bus
        self._dice = dice
        self._die = die
        self._handlers: list[Handler] = []

    def hang_up(self) -> None:
        for handler in self._handlers:
            self._bus.forget(handler)

    async def subscribe(self, subject: str, handler: Handler) -> object:
        self._require()
        await anyio.sleep(_HOP_S)
        self._handlers.append(handler)
        self._bus.listen(subject, handler)
        return None

    async def tap(self, subject: str, take: Callable[[BusMessage], None]) -> Callable[[], Awaitable[None]]:
        async def handler(message: BusMessage) -> None:
            take(message)

        async def end() -> None:
            self._bus.forget(handler)

        await self.subscribe(subject, handler)
        return end

    async def publish(self, subject: str, payload: bytes) -> None:
        self._require()
        await anyio.sleep(_HOP_S)
        if subject.startswith("nodes."):
            self._bus.tell(*_parsed(subject), payload)
        else:
            self._bus.publish(subject, payload)

    async def request(
        self, subject: str, payload: bytes, limit: timedelta, *, on_gap: Callable[[], None] | None = None
    ) -> bytes:
        self._require()
        node, verb = _parsed(subject)
        self._world.claims.sent(node, verb, payload)
        if self._dice.chance(self._world.weather.frontend_dies):
            self._die("before a request")
        await self._bus.travel(subject)
        self._require()
        question = Question(on_gap=on_gap)
        if self._bus.befalls("lost", subject):
            if self._bus.fails_loudly():
                question.lose_line()
        else:
            self._ask(node, verb, payload, question)
        return await self._answer(question, subject, limit)

    def _ask(self, node: NodeId, verb: str, payload: bytes, question: Question) -> None:
        def settle(answer: bytes) -> None:
            if self._world.bus_up and not self._bus.befalls("lost", f"reply of {node} {verb}"):
                self._world.tasks.start_soon(self._bring, question, answer, f"reply of {node} {verb}")

        worker = self._world.workers.get(node)
        if worker is None or not worker.hears(verb):
            raise NoResponders(f"nobody listens on {verb} of {node}")
        worker.hear(verb, payload, settle)
        if self._bus.befalls("repeated", f"{node} {verb}"):
            worker.hear(verb, payload, lambda answer: None)

    async def _bring(self, question: Question, answer: bytes, subject: str) -> None:
        await self._bus.travel(subject)
        question.settle(answer)

    async def _answer(self, question: Question, subject: str, limit: timedelta) -> bytes:
        self._world.when_bus_drops.append(question.lose_line)
        try:
            with anyio.move_on_after(limit.total_seconds()):
                await question.over.wait()
        finally:
            self._world.when_bus_drops.remove(question.lose_line)
        if question.line_lost:
            raise BusUnusable("the connection was lost")
        if question.answer is None:
            raise RequestTimedOut(f"no answer on {subject}")
        return question.answer

    def _require(self) -> None:
        if not self._world.bus_up:
            raise BusUnusable("the bus is down")


def _parsed(subject: str) -> tuple[NodeId, str]:
    _, node, verb = subject.split(".", 2)
    return NodeId(node), verb
