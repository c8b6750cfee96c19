"""`POST /api/node/{id}/heartbeat`: figures are optional, the sign of life is what counts."""

from datetime import datetime

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.ids import NodeId
from remuda.fleet.node_views import ObservedNodes
from remuda.store.database import open_database
from remuda.store.fleet import SqlFleetStore
from tests.support.frontends import LiveFrontend
from tests.support.nodes import THRESHOLDS

pytestmark = pytest.mark.anyio

GIB = 1 << 30
FIGURES = {
    "available_vram": 3 * GIB,
    "total_vram": 8 * GIB,
    "available_ram": 5 * GIB,
    "available_disk": 11 * GIB,
    "total_disk": 12 * GIB,
    "gpu_vendor": "nvidia",
}
UNREADABLE = [
    b"",
    b"{}",
    b"null",
    b"not json",
    b"[1, 2]",
    b'{"available_ram": "much"}',
    b'{"available_ram": -1}',
    b'{"available_ram": 18446744073709551616}',
    b'{"available_ram": 1, "gpu_vendor": "a\\u0000b"}',
    b'{"available_ram": 1, "report": {"sequence": 18446744073709551615}}',
    b'{"available_ram": 1, "gpu_vendor": "\\ud800"}',
    b"\xff\xfe",
    b"[" * 5000,
]


async def last_heard(frontend: LiveFrontend, node_id: str) -> datetime:
    return datetime.fromisoformat((await frontend.node(node_id))["last_heartbeat"])


async def test_figures_are_stored(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.heartbeat(node["id"], **FIGURES)
    shown = await frontend.node(node["id"])
    assert {key: shown[key] for key in FIGURES} == FIGURES


async def test_report_is_read_back_from_the_store_under_its_own_number(frontend: LiveFrontend) -> None:
    """Whoever waits for two different reports has to be able to tell them apart, also when they say the
    same."""
    node = await frontend.register(remuda={"boot_id": "boot-1", "version": "0.1.0"})
    database = await open_database(f"sqlite:///{frontend.data_dir}/remuda.db", clock=SystemClock())
    store, views = SqlFleetStore(database), ObservedNodes()
    fences = []
    for sequence in (41, 42):
        await frontend.heartbeat(node["id"], report={"boot_id": "boot-1", "sequence": sequence})
        standings = (await store.fleet()).standings(THRESHOLDS)
        report = views.of(standings, ())[NodeId(node["id"])].report
        assert report is not None
        fences.append((report.boot_id, report.sequence))
    await database.close()
    assert fences == [("boot-1", 41), ("boot-1", 42)]


async def test_a_figure_that_is_not_said_stays(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_ram=9 * GIB, available_ram=8 * GIB)
    await frontend.heartbeat(node["id"], available_disk=1)
    shown = await frontend.node(node["id"])
    assert (shown["total_ram"], shown["available_ram"]) == (9 * GIB, 8 * GIB)


async def test_a_disk_with_no_byte_free_is_a_figure(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_disk=GIB, available_disk=GIB)
    await frontend.heartbeat(node["id"], total_disk=GIB, available_disk=0)
    shown = await frontend.node(node["id"])
    assert (shown["total_disk"], shown["available_disk"]) == (GIB, 0)


async def test_free_vram_is_shown_within_the_budget(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_vram=8 * GIB, vram_budget="25%")
    await frontend.heartbeat(node["id"], available_vram=7 * GIB)
    shown = await frontend.node(node["id"])
    assert (shown["total_vram"], shown["available_vram"]) == (8 * GIB, 2 * GIB)
    assert shown["vram_budget_bytes"] == 2 * GIB


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_body_without_readable_figures_is_still_a_sign_of_life(
    frontend: LiveFrontend, body: bytes
) -> None:
    node = await frontend.register(total_ram=9 * GIB, available_ram=8 * GIB, gpu_vendor="amd")
    before = await last_heard(frontend, node["id"])
    reply = await frontend.worker.post(f"/api/node/{node['id']}/heartbeat", content=body)
    assert (reply.status_code, reply.json()) == (200, {"message": "heartbeat received"})
    assert await last_heard(frontend, node["id"]) > before
    shown = await frontend.node(node["id"])
    assert (shown["available_ram"], shown["gpu_vendor"]) == (8 * GIB, "amd")


async def test_a_pending_node_is_heard_but_its_figures_are_dropped(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register(total_ram=9 * GIB, available_ram=8 * GIB)
    before = await last_heard(strict_frontend, node["id"])
    await strict_frontend.heartbeat(node["id"], **FIGURES)
    shown = await strict_frontend.node(node["id"])
    assert (shown["status"], shown["available_ram"], shown["gpu_vendor"]) == ("pending", 8 * GIB, "")
    assert await last_heard(strict_frontend, node["id"]) > before


async def test_a_heartbeat_of_an_unknown_node_is_not_found(frontend: LiveFrontend) -> None:
    reply = await frontend.worker.post("/api/node/no-such-node/heartbeat", json={})
    assert reply.status_code == 404
    of_the_contract = {"code": 404, "message": "node not found", "type": "node_error"}
    assert reply.json()["error"].items() >= of_the_contract.items()


async def test_a_node_that_said_goodbye_is_back_with_its_next_heartbeat(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.worker.post(f"/api/node/{node['id']}/deregister")
    assert await frontend.status(node["id"]) == "offline"
    await frontend.heartbeat(node["id"])
    assert await frontend.status(node["id"]) == "healthy"


async def test_bad_heartbeats_do_not_spoil_those_written_with_them(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    answers: list[int] = []

    async def send(node_id: str, content: bytes) -> None:
        reply = await frontend.worker.post(f"/api/node/{node_id}/heartbeat", content=content)
        answers.append(reply.status_code)

    async with anyio.create_task_group() as senders:
        for _ in range(20):
            senders.start_soon(send, node["id"], b'{"available_ram": 7}')
            senders.start_soon(send, node["id"], b'{"gpu_vendor": "\\u0000"}')
            senders.start_soon(send, "%00", b"{}")
    assert sorted(answers) == [200] * 40 + [404] * 20
    assert (await frontend.node(node["id"]))["available_ram"] == 7
