"""What a worker's credentials allow on the bundled server, and what they do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.bus.auth import account_user, issued
from remuda.bus.client import Bus
from remuda.bus.credentials import BusUser, ClusterKeys
from remuda.bus.messages import Connected, Down, Incoming
from remuda.bus.server import NatsServer
from remuda.core.errors import BusRefused
from remuda.core.ids import NodeId
from remuda.wire import subjects
from tests.support.nats_servers import CLOCK, ENTROPY, connected, operator_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEYS = ClusterKeys.create(ENTROPY)
OURS = NodeId("0b1c6a5e-0000-4000-8000-000000000001")
THEIRS = NodeId("0b1c6a5e-0000-4000-8000-000000000002")
SOON = timedelta(seconds=10)


async def echo(message: Incoming) -> None:
    assert message.respond is not None
    await message.respond(message.payload)


async def ignore(message: Incoming) -> None:
    pass


def mint(node: NodeId) -> BusUser:
    allowed = subjects.permissions("backend", node)
    return KEYS.account.mint_worker(
        "backend",
        node,
        subscribe=allowed.subscribe,
        publish=allowed.publish,
        now=CLOCK.now(),
        ttl=timedelta(hours=1),
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with operator_server(tmp_path, KEYS) as server:
        yield server


@asynccontextmanager
async def worker(server: NatsServer, node: NodeId = OURS) -> AsyncIterator[Bus]:
    minted = mint(node)
    async with connected(server.url, issued(lambda: minted)) as bus:
        yield bus


@asynccontextmanager
async def frontend(server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(server.url, account_user(KEYS.account, "f", CLOCK)) as bus:
        yield bus


async def test_a_worker_answers_requests_on_its_own_subjects(server: NatsServer) -> None:
    async with worker(server) as node, frontend(server) as caller:
        await node.subscribe(subjects.backend_install(OURS), echo)
        assert await caller.request(subjects.backend_install(OURS), b"{}", SOON) == b"{}"


async def test_a_worker_tells_frontends_of_its_progress(server: NatsServer) -> None:
    heard: list[str] = []

    async def hear(message: Incoming) -> None:
        heard.append(message.subject)

    async with worker(server) as node, frontend(server) as caller:
        await caller.subscribe(subjects.install_progress_all(OURS), hear)
        await node.publish(subjects.install_progress(OURS, "op-1"), b"{}")
        await wait_until(lambda: heard == [subjects.install_progress(OURS, "op-1")])


@pytest.mark.parametrize(
    "subject", [subjects.node_all(THEIRS), "nodes.>", "_INBOX.>", ">", "gallery.*.progress"]
)
async def test_a_worker_cannot_listen_to_what_is_not_its_own(server: NatsServer, subject: str) -> None:
    async with worker(server) as node:
        with capture_logs() as logs, pytest.raises(BusRefused, match="the bus refuses the subscription to"):
            await node.subscribe(subject, ignore)
    assert "bus_permission_refused" in [entry["event"] for entry in logs]


@pytest.mark.parametrize(
    "subject", [subjects.install_progress(THEIRS, "op"), "_INBOX.guess", "gallery.x.cancel"]
)
async def test_a_worker_cannot_speak_where_it_has_no_say(server: NatsServer, subject: str) -> None:
    heard: list[str] = []

    async def hear(message: Incoming) -> None:
        heard.append(message.subject)

    async with worker(server) as node, frontend(server) as caller:
        await caller.subscribe(subject, hear)
        with capture_logs() as logs:
            await node.publish(subject, b"{}")
            await node.round_trip(SOON)
        await caller.round_trip(SOON)
    assert ("bus_permission_refused", "publish") in [(entry["event"], entry.get("action")) for entry in logs]
    assert heard == []


async def test_a_refused_request_fails_at_once(server: NatsServer) -> None:
    async with worker(server) as node:
        with anyio.fail_after(10), pytest.raises(BusRefused, match="the bus refuses the subscription to"):
            await node.request(subjects.backend_list(THEIRS), b"{}", timedelta(minutes=10))


async def test_of_two_answers_to_one_request_the_first_counts(server: NatsServer) -> None:
    async def twice(message: Incoming) -> None:
        assert message.respond is not None
        await message.respond(b"first")
        await message.respond(b"second")

    async with worker(server) as node, frontend(server) as caller:
        await node.subscribe(subjects.backend_list(OURS), twice)
        for _ in range(3):
            assert await caller.request(subjects.backend_list(OURS), b"{}", SOON) == b"first"


async def test_credentials_that_lost_a_permission_keep_the_bus_visibly_down(server: NatsServer) -> None:
    held = [mint(OURS), mint(THEIRS)]
    async with connected(server.url, issued(lambda: held[0])) as bus:
        await bus.subscribe(subjects.node_stop(OURS), ignore)
        lost = held.pop(0)
        with capture_logs() as logs:
            bus.rotate()
            await wait_until(lambda: "bus_rotation_failed" in [entry["event"] for entry in logs])
        assert isinstance(bus.state, Connected), "the connection that was to be replaced still serves"
        await server.revoke({lost.public_key: CLOCK.now()})
        await wait_until(
            lambda: isinstance(bus.state, Down) and "refuses the subscription" in bus.state.reason
        )
