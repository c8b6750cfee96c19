"""Addresses that would lead a frontend to services of its own machine, or to the one that holds a cloud
machine's credentials: who may register them, and that nobody dials them for anybody else."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from remuda.core.clock import SystemClock
from remuda.core.ids import FrontendId
from remuda.fleet.health import Thresholds
from remuda.gateway.dialer import Dialer, call
from remuda.host.folder import DataFolder
from remuda.inference.failures import UpstreamFailed
from remuda.store.database import open_database
from remuda.store.fleet import SqlFleetStore
from remuda.upstreams.http.client import Pool, ServerAddress
from remuda.upstreams.http2.connection import dial
from remuda.upstreams.http2.failures import Unreachable
from tests.support.frontends import LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio

FAR = "203.0.113.9"  # Where the proxy says that the caller is.
THRESHOLDS = Thresholds(timedelta(minutes=1), timedelta(minutes=2))


class Service:
    """Something on this machine that trusts whoever connects from it."""

    def __init__(self) -> None:
        self.port = 0
        self.callers = 0
        self.when_called: Callable[[], None] = lambda: None

    async def answer(self, stream: ByteStream) -> None:
        async with stream:
            self.callers += 1
            self.when_called()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    found = Service()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    found.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, found.answer)
        yield found
        tasks.cancel_scope.cancel()


@pytest.fixture(scope="module")
async def behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    folder = tmp_path_factory.mktemp("behind-proxy")
    async with live_frontend(folder, auto_approve=False, trusted_proxies=["127.0.0.1"]) as live:
        yield live


async def registered_from(frontend: LiveFrontend, source: str, address: str) -> tuple[int, str]:
    """The status, and the node's id or why there is none."""
    body = frontend.registration(address=address, http_address=address)
    headers = {"X-Forwarded-For": source}
    reply = await frontend.worker.post("/api/node/register", json=body, headers=headers)
    answer = reply.json()
    return reply.status_code, answer["id"] if reply.status_code == 201 else answer["error"]["message"]


@asynccontextmanager
async def dialer(frontend: LiveFrontend) -> AsyncIterator[Dialer]:
    """One that dials when it is told to, on the same database."""
    path = DataFolder(frontend.data_dir).database.absolute()
    database = await open_database(f"sqlite:///{path}", clock=SystemClock())
    try:
        yield Dialer(FrontendId("another"), SqlFleetStore(database), THRESHOLDS, lambda node: f"user-{node}")
    finally:
        await database.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254"]
)
async def test_a_node_elsewhere_may_not_say_that_it_is_here(behind_proxy: LiveFrontend, host: str) -> None:
    status, why = await registered_from(behind_proxy, FAR, f"{host}:80")
    assert (status, FAR in why) == (400, True)


async def test_a_node_here_may_not_say_that_it_is_a_neighbour_on_the_link(behind_proxy: LiveFrontend) -> None:
    status, why = await registered_from(behind_proxy, "127.0.0.1", "169.254.169.254:80")
    assert (status, "link-local" in why) == (400, True)


@pytest.mark.parametrize(
    "form", ["2130706433:{}", "0x7f000001:{}", "127.1:{}", "x@127.0.0.1:{}", "127.0.0.1:{}#:1"]
)
async def test_other_spellings_of_this_machine_are_not_dialled_before_approval_nor_after(
    behind_proxy: LiveFrontend, service: Service, form: str
) -> None:
    frontend = behind_proxy
    status, node = await registered_from(frontend, FAR, form.format(service.port))
    assert status == 201
    logs = f"/api/nodes/{node}/backend-logs"
    async with dialer(frontend) as another:
        await another.dial_once()
        assert (await frontend.admin.get(logs)).status_code == 409
        assert (await frontend.admin.post(f"/api/nodes/{node}/approve")).status_code == 200
        await another.dial_once()
    assert (await frontend.admin.get(logs)).status_code in (409, 502)
    assert service.callers == 0
    assert (await frontend.admin.delete(f"/api/nodes/{node}")).status_code == 200


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1"])
async def test_no_way_to_a_node_leads_such_a_name_to_this_machine(service: Service, host: str) -> None:
    assert "a loopback address" in await call(f"{host}:{service.port}")
    with pytest.raises(Unreachable, match="an address that no node has"):
        await dial(f"{host}:{service.port}")
    with pytest.raises(UpstreamFailed, match="a loopback address"):
        await Pool().exchange(ServerAddress(host, service.port), b"GET / HTTP/1.1\r\n\r\n", b"")
    assert service.callers == 0
    assert await call(f"127.0.0.1:{service.port}") == "", "for a node that is here"


async def test_a_worker_that_is_killed_while_it_answers_is_called_again_at_once(
    frontend: LiveFrontend, service: Service
) -> None:
    node = await frontend.register("killed", http_address=f"127.0.0.1:{service.port}")
    user = f"user-{node['id']}"
    async with dialer(frontend) as another:
        service.when_called = lambda: another.left_bus(user)
        await another.dial_once()
        assert service.callers >= 1
        assert another.wanted == {user}
        service.when_called = lambda: None
        await another.dial_once()
        assert another.wanted == frozenset(), "it answered after its connection was closed"


# Calls with a secret of the caller's own making.


async def test_calls_that_prove_nothing_wait_for_no_write_and_make_none_wait(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    path = DataFolder(frontend.data_dir).database
    calls = [("POST", "/drain"), ("POST", "/resume"), ("POST", "/deregister"), ("GET", "/models")]
    with sqlite3.connect(path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")  # Nobody else can write now.
        with anyio.fail_after(4):  # Less than a write waits for the lock.
            for number, (method, verb) in enumerate(calls):
                bearer = {"Authorization": f"Bearer rmn_{number}"}
                for node_id, status in ((node["id"], 401), ("unknown", 404)):
                    url = f"/api/node/{node_id}{verb}"
                    assert (await frontend.anyone.request(method, url, headers=bearer)).status_code == status
        writer.execute("ROLLBACK")
