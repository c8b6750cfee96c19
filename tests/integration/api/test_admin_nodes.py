"""The admin API for nodes: seeing them, letting them in, draining them."""

from datetime import datetime

import pytest

from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio

TEXTS = {
    "id",
    "name",
    "node_type",
    "address",
    "http_address",
    "status",
    "gpu_vendor",
    "gpu_compute_capability",
}
FIGURES = {
    "total_vram",
    "available_vram",
    "reserved_vram",
    "total_ram",
    "available_ram",
    "total_disk",
    "available_disk",
    "max_replicas_per_model",
    "model_count",
    "in_flight_count",
}
FLAGS = {"max_replicas_per_model_manually_set", "vram_budget_manually_set"}
TIMES = {"last_heartbeat", "created_at", "updated_at"}
ALWAYS = TEXTS | FIGURES | FLAGS | TIMES | {"remuda"}
WHEN_SET = {"capability", "vram_budget", "vram_budget_bytes", "labels"}


async def test_a_node_has_the_contracts_fields_and_one_of_ours(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.admin.put(f"/api/nodes/{node['id']}/labels", json={})
    shown = await frontend.node(node["id"])
    assert shown.keys() == ALWAYS
    assert all(isinstance(shown[field], str) for field in TEXTS)
    assert all(type(shown[field]) is int for field in FIGURES)
    assert all(isinstance(shown[field], bool) for field in FLAGS)
    assert all(datetime.fromisoformat(shown[field]).tzinfo for field in TIMES)


async def test_fields_that_are_empty_by_default_appear_when_set(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_vram=100, vram_budget="50%", capability="cpu", labels={"a": "b"})
    shown = await frontend.node(node["id"])
    assert shown.keys() == ALWAYS | WHEN_SET
    assert (shown["capability"], shown["vram_budget"], shown["vram_budget_bytes"]) == ("cpu", "50%", 50)


async def test_our_own_facts_stand_apart(frontend: LiveFrontend) -> None:
    identity = {"version": "1.2.3", "boot_id": "boot-7"}
    facts = (await frontend.node((await frontend.register(remuda=identity))["id"]))["remuda"]
    assert facts == {
        "reachability": "silent",
        "approved": True,
        "drained": False,
        "leaving": False,
        "version": "1.2.3",
        "boot_id": "boot-7",
        "identified_by": "address",
        "source": "127.0.0.1",
        "reasons": ["its worker is connecting to the bus"],
        "joining": True,
    }


async def test_nodes_are_listed_by_name(frontend: LiveFrontend) -> None:
    for name in ("zebra", "apple", "Mango"):
        await frontend.register(name)
    reply = await frontend.admin.get("/api/nodes")
    names = [node["name"] for node in reply.json()]
    assert reply.status_code == 200
    assert names == sorted(names)
    assert {"zebra", "apple", "Mango"} <= set(names)
    assert all(node.keys() >= ALWAYS for node in reply.json())


@pytest.mark.parametrize("path", ["/api/nodes/models", "/api/nodes/{id}/models"])
async def test_models_are_listed(frontend: LiveFrontend, path: str) -> None:
    node = await frontend.register()
    reply = await frontend.admin.get(path.format(id=node["id"]))
    assert (reply.status_code, reply.json()) == (200, [])


async def test_approval_lets_a_node_in_and_brings_its_credentials(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register("applicant")
    reply = await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    said = reply.json()
    assert reply.status_code == 200
    assert said.keys() == {"id", "name", "node_type", "status", "message", "nats_jwt", "nats_user_seed"}
    assert (said["id"], said["name"], said["node_type"]) == (node["id"], "applicant", "backend")
    assert said["status"] == "healthy" == await strict_frontend.status(node["id"])


async def test_only_a_pending_node_can_be_approved(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register()
    await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    reply = await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, 400)
    assert "not pending" in reply.json()["error"]["message"]


async def test_a_drain_outlives_the_worker_until_it_is_lifted(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    reply = await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    assert (reply.status_code, reply.json()) == (200, {"message": "node set to draining"})
    await frontend.worker.post(f"/api/node/{node['id']}/deregister")
    await frontend.register(node["name"])
    assert await frontend.status(node["id"]) == "draining"
    reply = await frontend.admin.post(f"/api/nodes/{node['id']}/resume")
    assert (reply.status_code, reply.json()) == (200, {"message": "node resumed"})
    assert await frontend.status(node["id"]) == "healthy"


async def test_a_drained_node_that_is_gone_is_offline_and_still_drained(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    await frontend.worker.post(f"/api/node/{node['id']}/deregister")
    shown = await frontend.node(node["id"])
    assert (shown["status"], shown["remuda"]["drained"]) == ("offline", True)


async def test_history_says_who_did_what_newest_first(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    entries = (await frontend.admin.get("/api/history", params={"node": node["name"]})).json()
    assert [(entry["event"], entry["actor"]) for entry in entries] == [
        ("drained", "local"),
        ("registered", ""),
    ]
    assert {entry["node_id"] for entry in entries} == {node["id"]}


async def test_history_is_cut_to_the_limit(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    assert len((await frontend.admin.get("/api/history", params={"limit": 1})).json()) == 1
    for bad in ("0", "501", "many"):
        reply = await frontend.admin.get("/api/history", params={"limit": bad})
        assert (reply.status_code, reply.json()["error"]["message"][:6]) == (400, "limit ")
