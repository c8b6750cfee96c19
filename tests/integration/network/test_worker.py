"""A worker whose frontend and bus are at the far end of a bad network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from remuda.assembly.running import Stop
from remuda.assembly.settings import WorkerSettings
from remuda.cli.worker import work
from remuda.fleet.health import NodeStatus, Standing
from remuda.host.ports import free_port
from remuda.worker.enrolment import WorkerPhase
from tests.integration.worker.rig import NAME, OFTEN, running, wait_for_phase
from tests.support.fault_proxy import HOST, FaultProxy, fault_proxy
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.nats_servers import IMPATIENT
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

UNHEALTHY_AFTER = timedelta(seconds=2)
FIVE_MINUTES = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Site:
    """A frontend with its bus. Workers reach both only by way of these."""

    frontend: LiveFrontend
    http: FaultProxy
    bus: FaultProxy

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http.port}"

    @property
    def token(self) -> SecretStr:
        return SecretStr(self.frontend.token)

    async def node(self) -> Standing | None:
        standings = await self.frontend.running.registry.standings()
        return next((one for one in standings if one.node.name == NAME), None)

    async def wait_for(self, status: NodeStatus, because: str = "") -> Standing:
        async def arrived() -> Standing | None:
            found = await self.node()
            if found is None or found.status is not status:
                return None
            return found if because in " ".join(found.reasons) else None

        found = await wait_until(arrived, within=20, what=f"the node to be {status}")
        assert found is not None
        return found

    async def heard_at(self) -> datetime:
        found = await self.node()
        assert found is not None
        return found.node.last_heartbeat

    async def wait_for_heartbeats(self, count: int) -> None:
        for _ in range(count):
            before = await self.heard_at()

            async def later(before: datetime = before) -> bool:
                return await self.heard_at() > before

            await wait_until(later)


@asynccontextmanager
async def site(folder: Path, unhealthy_after: timedelta = UNHEALTHY_AFTER) -> AsyncIterator[Site]:
    nats_port = free_port(HOST)
    async with (
        fault_proxy(nats_port) as bus,
        live_frontend(
            folder / "frontend",
            nats_port=nats_port,
            nats_advertise_url=f"nats://{HOST}:{bus.port}",
            node_unhealthy_after=unhealthy_after,
            node_offline_after=FIVE_MINUTES,
        ) as frontend,
        fault_proxy(frontend.port) as http,
    ):
        yield Site(frontend, http, bus)


async def test_a_slow_and_thin_link_is_enough(tmp_path: Path) -> None:
    """300 ms each way and 20 KB/s, for a worker as `remuda worker` runs it."""
    async with site(tmp_path, FIVE_MINUTES) as far, anyio.create_task_group() as tasks:
        for link in (far.http, far.bus):
            link.slow(delay_s=0.3, bytes_per_s=20_000)
        settings = WorkerSettings(
            register_to=far.url,
            registration_token=far.token,
            data_dir=tmp_path / "worker",
            node_name=NAME,
            heartbeat_interval=OFTEN,
        )
        tasks.start_soon(work, settings, Stop())
        await far.wait_for(NodeStatus.HEALTHY)
        await far.wait_for_heartbeats(3)
        assert (far.http.accepted, far.bus.accepted) == (1, 1)
        tasks.cancel_scope.cancel()


async def test_a_link_that_resets_the_first_connections_is_got_through(tmp_path: Path) -> None:
    async with site(tmp_path) as far:
        far.http.reset_next = far.bus.reset_next = 2
        async with running(far.url, token=far.token) as worker:
            await wait_for_phase(worker, WorkerPhase.REGISTERING, because="cannot be reached")
            await wait_for_phase(worker, WorkerPhase.READY)
            await far.wait_for(NodeStatus.HEALTHY)


async def cut(link: FaultProxy) -> None:
    """And wait until somebody dials again."""
    before = link.accepted
    link.reset()
    await wait_until(lambda: link.accepted > before)


async def test_after_many_resets_it_is_the_same_healthy_node(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as far,
        running(far.url, token=far.token, heartbeat_interval=OFTEN) as worker,
    ):
        node_id = (await wait_for_phase(worker, WorkerPhase.READY)).node_id
        for _ in range(8):
            await cut(far.bus)
            await cut(far.http)
        await wait_for_phase(worker, WorkerPhase.READY)
        await far.wait_for_heartbeats(3)
        assert (await far.wait_for(NodeStatus.HEALTHY)).node.id == node_id
        history = await far.frontend.running.registry.history(NAME, 100)
        assert [entry.event for entry in history] == ["registered"]


async def test_a_bus_in_a_black_hole_silences_the_worker_until_it_opens(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as far,
        running(far.url, timeouts=IMPATIENT, token=far.token, heartbeat_interval=OFTEN) as worker,
        httpx.AsyncClient(trust_env=False, verify=PLAIN) as client,
    ):
        await wait_for_phase(worker, WorkerPhase.READY)
        healthy = await far.wait_for(NodeStatus.HEALTHY)
        ready = f"http://{healthy.node.http_address}/readyz"
        assert (await client.get(ready)).status_code == 200
        far.bus.stall()
        await wait_for_phase(worker, WorkerPhase.CONNECTING, because="did not answer")
        assert (await client.get(ready)).status_code == 503
        await far.wait_for(NodeStatus.UNHEALTHY)
        far.bus.resume()
        await wait_for_phase(worker, WorkerPhase.READY)
        assert (await client.get(ready)).status_code == 200
        assert (await far.wait_for(NodeStatus.HEALTHY)).node.id == healthy.node.id


async def test_a_worker_that_cannot_connect_to_the_bus_says_so_on_both_machines(tmp_path: Path) -> None:
    async with (
        site(tmp_path, FIVE_MINUTES) as far,
        httpx.AsyncClient(trust_env=False, verify=PLAIN) as client,
    ):
        far.bus.reset_next = 1000  # As a firewall does that rejects connections.
        async with running(far.url, token=far.token) as worker:
            why = f"its worker is not connected to the bus: the bus at nats://{HOST}:{far.bus.port}"
            unhealthy = await far.wait_for(NodeStatus.UNHEALTHY, why)
            assert len(unhealthy.reasons) == 1
            answer = await client.get(f"http://{unhealthy.node.http_address}/readyz")
            assert answer.status_code == 503
            assert f"nats://{HOST}:{far.bus.port}" in answer.text
            far.bus.reset_next = 0
            await wait_for_phase(worker, WorkerPhase.READY)
            assert (await far.wait_for(NodeStatus.HEALTHY)).reasons == ()


async def test_a_frontend_in_a_black_hole_is_given_up_call_by_call_until_it_opens(tmp_path: Path) -> None:
    short = timedelta(seconds=1)
    async with (
        site(tmp_path) as far,
        running(far.url, token=far.token, heartbeat_interval=OFTEN, call_limit=short) as worker,
    ):
        await wait_for_phase(worker, WorkerPhase.READY)
        healthy = await far.wait_for(NodeStatus.HEALTHY)
        with capture_logs() as logs:
            far.http.stall()
            await far.wait_for(NodeStatus.UNHEALTHY)
        failures = [entry for entry in logs if entry["event"] == "heartbeat_failed"]
        assert ["did not answer" in entry["reason"] for entry in failures] == [True]
        assert worker.state.value.phase is WorkerPhase.READY, "commands reach it all the same"
        far.http.resume()
        assert (await far.wait_for(NodeStatus.HEALTHY)).node.id == healthy.node.id
        await wait_until(lambda: far.http.connections <= 1, what="the given-up connections to be closed")


async def test_a_stop_in_a_black_hole_does_not_last(tmp_path: Path) -> None:
    async with site(tmp_path) as far:
        async with running(far.url, token=far.token) as worker:
            await wait_for_phase(worker, WorkerPhase.READY)
            far.http.stall()
            far.bus.stall()
            stopping = anyio.current_time()
        assert anyio.current_time() - stopping < 10, "service managers kill after that"
