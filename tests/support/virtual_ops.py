"""A frontend and its workers on a loop whose clock jumps: hours pass in no time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import anyio

from remuda.bus.auth import anonymous
from remuda.bus.client import Bus
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import BusRefused, BusUnusable
from remuda.core.ids import BootId, FrontendId
from remuda.core.retry import Backoff
from remuda.ops.model import Dispatch, Kind, Outcome, State, Step, Verb
from remuda.ops.ports import BusMessage
from remuda.wire.codec import Message
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.inline_database import InlineDatabase
from tests.support.memory_bus import MemoryBroker
from tests.support.ops_rig import OpsFrontend, ScriptedWorker, ops_frontend, worker
from tests.support.virtual_loop import run_virtually

SERVER = "nats://nowhere:4222"


@dataclass(slots=True)
class World:
    frontend: OpsFrontend
    worker: ScriptedWorker
    lines: "Recorder"
    broker: MemoryBroker
    database: InlineDatabase


@dataclass(slots=True)
class Recorder:
    """The bus, with a note of what was asked of it, and trouble where a test wants some."""

    bus: Bus
    calls: list[tuple[str, str]] = field(default_factory=list)
    limits: list[timedelta] = field(default_factory=list)
    refuses_subscriptions: bool = False
    breaks_requests: bool = False

    async def request(
        self, subject: str, payload: bytes, limit: timedelta, *, on_gap: Callable[[], None] | None = None
    ) -> bytes:
        self.calls.append(("request", subject))
        self.limits.append(limit)
        if self.breaks_requests:
            raise BusUnusable("the connection was lost")
        return await self.bus.request(subject, payload, limit, on_gap=on_gap)

    async def publish(self, subject: str, payload: bytes) -> None:
        self.calls.append(("publish", subject))
        await self.bus.publish(subject, payload)

    async def subscribe(self, subject: str, handler: Callable[[BusMessage], Awaitable[None]]) -> None:
        self.calls.append(("subscribe", subject))
        if self.refuses_subscriptions:
            raise BusRefused("not allowed")
        await self.bus.subscribe(subject, handler)

    async def tap(self, subject: str, take: Callable[[BusMessage], None]) -> Callable[[], Awaitable[None]]:
        self.calls.append(("subscribe", subject))
        if self.refuses_subscriptions:
            raise BusRefused("not allowed")
        end = await self.bus.tap(subject, take)

        async def noted() -> None:
            self.calls.append(("unsubscribe", subject))
            await end()

        return noted


@asynccontextmanager
async def connected(broker: MemoryBroker, clock: HostClock, name: str) -> AsyncIterator[Bus]:
    backoff = Backoff(timedelta(milliseconds=10), timedelta(seconds=5))
    bus = Bus(
        SERVER,
        anonymous,
        name=name,
        backoff=backoff,
        entropy=SeededEntropy(len(name)),
        clock=clock,
        make_link=broker.link,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(bus.run)
        await bus.wait_connected()
        yield bus
        tasks.cancel_scope.cancel()


def virtually(test: Callable[[World], Awaitable[None]], *, reconciles: bool = False, **options: Any) -> None:
    """Run a test with one frontend and one worker, which sends no reports and listens to nothing yet."""

    async def main() -> None:
        clock = HostClock()
        broker, (database, _) = MemoryBroker(clock), fresh_database(clock)
        async with connected(broker, clock, "front") as ours, connected(broker, clock, "worker") as theirs:
            lines = Recorder(ours)
            node = await worker(theirs, database, reports=False)
            async with ops_frontend(
                ours, database, clock, lines=lines, taps=lines, reconciles=reconciles, **options
            ) as frontend:
                await test(World(frontend, node, lines, broker, database))

    run_virtually(main)


async def begun(world: World, kind: Kind = Kind.INSTALL, **more: Any) -> Step:
    """A step whose first attempt is committed."""
    await world.frontend.submit([world.worker.node], kind, **more)
    step = await world.frontend.step()
    now = (await world.frontend.store.live()).now
    ready = replace(
        step,
        state=State.RUNNING,
        attempt=1,
        boot=BootId(f"{world.worker.node}-boot-{world.worker.boot}"),
        answer_by=now + timedelta(minutes=15),
        wait_until=now + timedelta(hours=3),
    )
    (written,) = await world.frontend.store.commit([ready], FrontendId("frontend-1"), timedelta(seconds=60))
    return written


async def send(world: World, step: Step, verb: Verb) -> None:
    await world.frontend.commander.send(Dispatch(step.op, step.node, verb, step.attempt), step)


async def time_passes(seconds: float) -> None:
    """On the loop's own clock, which jumps."""
    await anyio.sleep(seconds)


async def settled(world: World) -> None:
    """Nothing is awaited any more."""
    with anyio.fail_after(100_000):
        while world.frontend.commander.awaited:
            await time_passes(1)


async def outcome(world: World) -> Outcome | None:
    live = await world.frontend.store.live()
    ended = [one for one in live.requests if one.ended]
    return Outcome(ended[0].attempt, ended[0].ending) if ended else None


def after(seconds: float, reply: Message) -> Callable[[bytes], Awaitable[Message]]:
    async def answer(payload: bytes) -> Message:
        await anyio.sleep(seconds)
        return reply

    return answer
