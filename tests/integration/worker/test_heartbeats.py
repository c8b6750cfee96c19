"""Heartbeats: what they hold, when they come, and when they must not."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from remuda.worker.enrolment import WorkerPhase
from tests.integration.worker.rig import NAME, OFTEN, SELDOM, ready, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import PlainServer, plain_server
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_a_heartbeat_tells_what_is_free_and_reports(frontend: LocalAiFrontend) -> None:
    async with ready(frontend):
        await wait_until(lambda: frontend.of("heartbeat"))
    assert frontend.node(NAME).heartbeats[0] == {
        "available_ram": 8 << 30,
        "available_disk": 1 << 39,
        "total_disk": 1 << 40,
        "report": {"boot_id": "boot-1", "sequence": 1, "installed": [], "replicas": [], "work": []},
    }


async def test_heartbeats_keep_coming_and_count_up(frontend: LocalAiFrontend) -> None:
    async with ready(frontend, heartbeat_interval=OFTEN):
        await wait_until(lambda: len(frontend.of("heartbeat")) >= 4)
    assert sequences(frontend)[:4] == [1, 2, 3, 4]


async def test_a_change_is_reported_at_once_and_many_changes_together(frontend: LocalAiFrontend) -> None:
    async with ready(frontend, heartbeat_interval=SELDOM) as worker:
        await wait_until(lambda: frontend.of("heartbeat"))
        for _ in range(100):
            worker.report_changed()
        await wait_until(lambda: len(frontend.of("heartbeat")) == 2)
    assert sequences(frontend) == [1, 2]


async def test_no_heartbeat_while_the_bus_is_down_and_one_at_once_when_it_is_back(
    frontend: LocalAiFrontend, nats: PlainServer, tmp_path: Path
) -> None:
    async with ready(frontend, heartbeat_interval=OFTEN) as worker:
        await wait_until(lambda: frontend.of("heartbeat"))
        nats.kill()
        await wait_for_phase(worker, WorkerPhase.CONNECTING)
        before = len(frontend.of("heartbeat"))
        await wait_until(lambda: len(frontend.of("register")) > 1, what="the worker to ask about the bus")
        assert len(frontend.of("heartbeat")) <= before + 1  # One may have been on its way.
        async with plain_server(tmp_path, port=urlsplit(nats.url).port):
            await wait_until(lambda: len(frontend.of("heartbeat")) > before + 1)


async def test_readiness_follows_the_bus(
    frontend: LocalAiFrontend, nats: PlainServer, tmp_path: Path
) -> None:
    async with ready(frontend) as worker, httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        url = f"http://{frontend.of('register')[0].body['http_address']}"
        assert (await client.get(f"{url}/readyz")).status_code == 200
        nats.kill()
        await wait_for_phase(worker, WorkerPhase.CONNECTING)
        assert (await client.get(f"{url}/readyz")).status_code == 503
        assert (await client.get(f"{url}/healthz")).status_code == 200
        async with plain_server(tmp_path, port=urlsplit(nats.url).port):
            await wait_for_phase(worker, WorkerPhase.READY)
            assert (await client.get(f"{url}/readyz")).status_code == 200


async def test_failing_heartbeats_do_not_end_the_worker(frontend: LocalAiFrontend) -> None:
    async with ready(frontend, heartbeat_interval=OFTEN):
        frontend.misbehaviour["heartbeat"] = 500
        failed = len(frontend.of("heartbeat"))
        await wait_until(lambda: len(frontend.of("heartbeat")) > failed + 1)
        del frontend.misbehaviour["heartbeat"]
        heard = len(frontend.node(NAME).heartbeats)
        await wait_until(lambda: len(frontend.node(NAME).heartbeats) > heard)
        assert len(frontend.of("register")) == 1


def sequences(frontend: LocalAiFrontend) -> list[object]:
    reports = [beat["report"] for beat in frontend.node(NAME).heartbeats]
    return [report["sequence"] for report in reports if isinstance(report, dict)]
