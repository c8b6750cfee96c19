"""The owner of a connection, with links that break as the test says."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import anyio
import pytest

from remuda.bus.auth import Anonymous
from remuda.bus.client import Bus
from remuda.bus.link import Link, SendMessage
from remuda.bus.messages import Receiver
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import BusUnusable
from remuda.core.retry import Backoff
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class BreakingLink:
    """Refuses to publish, without waiting for anything, from before its loss is noted."""

    def __init__(self, group: str, on_lost: Callable[[Link], None], answer_later: SendMessage) -> None:
        self.group = group
        self.on_lost = on_lost
        self.answer_later = answer_later
        self.broken = False
        self.lost = False
        self.reason = "it broke"
        self.published: list[tuple[str, bytes]] = []

    async def open(self, *_: object, **__: object) -> None: ...

    def require(self) -> None:
        if self.lost:
            raise BusUnusable(self.reason)

    async def attach(self, receivers: Sequence[Receiver]) -> None: ...

    async def detach(self, receiver: Receiver) -> None: ...

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.broken:
            raise BusUnusable(self.reason)
        self.published.append((subject, payload))

    async def ask(self, subject: str, payload: bytes, inbox: str, answered: anyio.Event) -> None: ...

    async def round_trip(self, limit: timedelta) -> None: ...

    async def prove(self, limit: timedelta) -> None: ...

    async def retire(self, limit: timedelta) -> None: ...

    async def close(self) -> None: ...

    def lose(self) -> None:
        self.lost = True
        self.on_lost(self)


async def test_an_answer_on_a_link_whose_loss_is_not_noted_yet_lets_others_run_and_is_said_later() -> None:
    links: list[BreakingLink] = []

    def make_link(group: str, on_lost: Callable[[Link], None], answer_later: SendMessage) -> Link:
        links.append(BreakingLink(group, on_lost, answer_later))
        return links[-1]

    at_once = Backoff(timedelta(0), timedelta(0), 0.0)
    entropy = SystemEntropy()
    bus = Bus(
        "nats://127.0.0.1:1",
        Anonymous,
        name="test",
        backoff=at_once,
        entropy=entropy,
        clock=SystemClock(),
        make_link=make_link,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(bus.run)
        await bus.wait_connected()
        [first] = links
        first.broken = True

        async def answer() -> None:
            await first.answer_later("_INBOX.x", b"done")

        tasks.start_soon(answer)
        await anyio.wait_all_tasks_blocked()
        first.lose()
        await wait_until(lambda: len(links) == 2 and links[1].published)
        assert links[1].published == [("_INBOX.x", b"done")]
        tasks.cancel_scope.cancel()
