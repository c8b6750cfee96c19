"""`POST /api/node/register`: who gets in, what is answered, and what a second registration changes."""

import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from remuda import __version__
from tests.support.frontends import Json, LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio

ADDITIVE = {"nats_url", "remuda"}
REPLY = {"id", "name", "node_type", "status", "created_at"} | ADDITIVE
CREDENTIALS = {"nats_jwt", "nats_user_seed"}
GIB = 1 << 30


def localai_worker(token: str) -> Json:
    """Literally what a LocalAI worker with one GPU sends."""
    return {
        "name": "gpu-1",
        "address": "gpu-1:50051",
        "http_address": "gpu-1:50050",
        "token": token,
        "total_vram": 25757220864,
        "available_vram": 25757220864,
        "gpu_vendor": "nvidia",
        "gpu_compute_capability": "8.9",
        "capability": "nvidia-cuda-12",
        "max_replicas_per_model": 1,
        "total_disk": 1000000000000,
        "available_disk": 800000000000,
        "total_ram": 67000000000,
        "available_ram": 60000000000,
        "labels": {"node.replica-slots": "1"},
    }


async def register(frontend: LiveFrontend, body: Json) -> httpx.Response:
    return await frontend.worker.post("/api/node/register", json=body)


async def test_a_localai_worker_gets_an_id_and_bus_credentials(frontend: LiveFrontend) -> None:
    reply = await register(frontend, localai_worker(frontend.token))
    answered = reply.json()
    assert reply.status_code == 201
    assert answered.keys() == REPLY | CREDENTIALS
    assert (answered["name"], answered["node_type"], answered["status"]) == ("gpu-1", "backend", "healthy")
    assert (str(uuid.UUID(answered["id"])), uuid.UUID(answered["id"]).version) == (answered["id"], 4)
    assert datetime.fromisoformat(answered["created_at"]).utcoffset() == timedelta()
    assert answered["nats_user_seed"].startswith("SU")


async def test_what_a_localai_worker_says_is_shown(frontend: LiveFrontend) -> None:
    body = localai_worker(frontend.token)
    shown = await frontend.node((await register(frontend, body)).json()["id"])
    expected = {key: value for key, value in body.items() if key not in ("token", "labels")}
    assert {key: shown[key] for key in expected} == expected
    assert shown["labels"] == {
        "node.name": "gpu-1",
        "node.replica-slots": "1",
        "gpu.vendor": "nvidia",
        "gpu.vram": "16GB",
    }


async def test_an_agent_needs_only_its_name_and_type(frontend: LiveFrontend) -> None:
    body = {"name": "agent-laptop", "node_type": "agent", "token": frontend.token}
    reply = await register(frontend, body)
    assert (reply.status_code, reply.json()["node_type"]) == (201, "agent")


async def test_a_node_that_waits_for_approval_gets_no_credentials(strict_frontend: LiveFrontend) -> None:
    answered = await strict_frontend.register("waiting")
    assert answered.keys() == REPLY
    assert answered["status"] == "pending"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_bus_address_has_the_host_by_which_we_were_called(
    frontend: LiveFrontend, host: str
) -> None:
    url = f"http://{host}:{frontend.port}/api/node/register"
    reply = await frontend.worker.post(url, json=frontend.registration())
    assert httpx.URL(reply.json()["nats_url"]).host == host


async def test_a_host_header_that_names_no_host_does_no_harm(open_frontend: LiveFrontend) -> None:
    for host in ("[::1", "a b", "", "x" * 5000):
        headers = {"Host": host}
        body = open_frontend.registration()
        reply = await open_frontend.worker.post("/api/node/register", json=body, headers=headers)
        assert (reply.status_code, reply.json()["nats_url"][:7]) == (201, "nats://")


async def test_the_reply_says_what_this_frontend_understands(frontend: LiveFrontend) -> None:
    said = (await frontend.register())["remuda"]
    features = ["report", "machine_id", "bus_trouble", "node_secret"]
    assert said == {"version": __version__, "features": features}


async def test_unknown_fields_are_ignored(frontend: LiveFrontend) -> None:
    assert await frontend.register(colour="blue", nested={"a": [1, None]})


# Registering again


async def again(frontend: LiveFrontend, first: Json, second: Json) -> Json:
    """What is shown of a LocalAI node that registered with `first` and then with `second`."""
    known = await frontend.register(**first)
    known_again = await frontend.register(known["name"], **second)
    assert known_again["id"] == known["id"]
    return await frontend.node(known["id"])


async def test_the_id_stays_and_so_does_the_time_of_birth(frontend: LiveFrontend) -> None:
    first = await frontend.register()
    second = await frontend.register(first["name"], address="127.0.0.1:50061")
    assert (second["id"], second["created_at"]) == (first["id"], first["created_at"])
    assert (await frontend.node(first["id"]))["address"] == "127.0.0.1:50061"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("total_vram", 8 * GIB),
        ("total_ram", 16 * GIB),
        ("available_ram", 4 * GIB),
        ("gpu_vendor", "amd"),
        ("gpu_compute_capability", "9.0"),
        ("capability", "amd-rocm"),
        ("http_address", "box:50050"),
    ],
)
async def test_zero_and_empty_do_not_overwrite(frontend: LiveFrontend, field: str, said: Any) -> None:
    assert (await again(frontend, {field: said}, {field: type(said)()}))[field] == said
    assert (await again(frontend, {field: said}, {}))[field] == said


async def test_disk_figures_are_overwritten_even_by_zero(frontend: LiveFrontend) -> None:
    shown = await again(frontend, {"total_disk": 100, "available_disk": 50}, {"total_disk": 100})
    assert (shown["total_disk"], shown["available_disk"]) == (100, 0)
    shown = await again(frontend, {"total_disk": 100, "available_disk": 50}, {})
    assert (shown["total_disk"], shown["available_disk"]) == (0, 0)


async def test_a_budget_that_the_worker_dropped_is_gone(frontend: LiveFrontend) -> None:
    budgeted = {"total_vram": 10 * GIB, "available_vram": 10 * GIB, "vram_budget": "50%"}
    shown = await again(frontend, budgeted, {**budgeted, "vram_budget": ""})
    assert not {"vram_budget", "vram_budget_bytes"} & shown.keys()
    assert shown["available_vram"] == 10 * GIB


async def test_an_admins_budget_and_replicas_outlive_registrations(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_vram=10 * GIB, available_vram=10 * GIB)
    await frontend.admin.put(f"/api/nodes/{node['id']}/vram-budget", json={"value": "20%"})
    await frontend.admin.put(f"/api/nodes/{node['id']}/max-replicas-per-model", json={"value": 3})
    await frontend.register(
        node["name"],
        total_vram=10 * GIB,
        available_vram=10 * GIB,
        vram_budget="90%",
        max_replicas_per_model=7,
    )
    shown = await frontend.node(node["id"])
    assert (shown["vram_budget"], shown["max_replicas_per_model"]) == ("20%", 3)
    assert (shown["available_vram"], shown["total_vram"]) == (2 * GIB, 10 * GIB)
    assert shown["labels"]["node.replica-slots"] == "3"


async def test_free_vram_of_zero_counts_unless_an_admin_set_a_budget(frontend: LiveFrontend) -> None:
    full: Json = {"total_vram": 10 * GIB, "available_vram": 10 * GIB}
    used_up: Json = {"total_vram": 10 * GIB, "available_vram": 0}
    assert (await again(frontend, full, used_up))["available_vram"] == 0
    node = await frontend.register(**full)
    await frontend.admin.put(f"/api/nodes/{node['id']}/vram-budget", json={"value": "50%"})
    await frontend.register(node["name"], **used_up)
    assert (await frontend.node(node["id"]))["available_vram"] == 5 * GIB


async def test_replicas_below_one_are_read_as_one(frontend: LiveFrontend) -> None:
    shown = await again(frontend, {"max_replicas_per_model": 4}, {"max_replicas_per_model": -3})
    assert shown["max_replicas_per_model"] == 1


async def test_an_admins_labels_stay_and_the_workers_are_replaced(frontend: LiveFrontend) -> None:
    node = await frontend.register(labels={"rack": "1", "old": "yes"})
    await frontend.admin.patch(f"/api/nodes/{node['id']}/labels", json={"owner": "ann"})
    await frontend.register(node["name"], labels={"rack": "2", "owner": "bob"})
    labels = (await frontend.node(node["id"]))["labels"]
    assert labels == {"rack": "2", "owner": "ann", "node.name": node["name"], "node.replica-slots": "1"}


async def test_a_label_that_cannot_be_kept_is_left_out(frontend: LiveFrontend) -> None:
    labels = {"good": "1", "bad key": "2", "k" * 129: "3", "long": "v" * 256}
    node = await frontend.register(labels=labels)
    kept = (await frontend.node(node["id"]))["labels"]
    assert kept.keys() & labels.keys() == {"good"}


async def test_an_approved_node_stays_approved(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register()
    await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    answered = await strict_frontend.register(node["name"])
    assert (answered["status"], answered.keys() >= CREDENTIALS) == ("healthy", True)


async def test_a_pending_node_stays_pending(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register()
    assert (await strict_frontend.register(node["name"]))["status"] == "pending"


async def test_a_pending_node_is_let_in_once_approval_is_automatic(tmp_path: Path) -> None:
    async with live_frontend(tmp_path, auto_approve=False) as before:
        node = await before.register("patient")
    async with live_frontend(tmp_path, auto_approve=True) as after:
        assert (await after.register("patient"))["status"] == "healthy"
        assert (await after.node(node["id"]))["remuda"]["approved"] is True


async def test_a_budget_that_cannot_be_read_means_no_cap(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_vram=GIB, available_vram=GIB, vram_budget="200%")
    shown = await frontend.node(node["id"])
    assert (shown["available_vram"], shown["vram_budget"]) == (GIB, "200%")


# Names


async def test_a_name_of_another_living_machine_is_refused(frontend: LiveFrontend) -> None:
    node = await frontend.register(machine_id="machine-a")
    reply = await register(frontend, frontend.registration(node["name"], machine_id="machine-b"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, 409)
    assert "give this one another name with" in reply.json()["error"]["message"]


async def test_the_same_machine_comes_back_under_its_name(frontend: LiveFrontend) -> None:
    node = await frontend.register(machine_id="machine-a")
    assert (await frontend.register(node["name"], machine_id="machine-a"))["id"] == node["id"]


async def boot_of(frontend: LiveFrontend, node_id: str) -> str:
    return str((await frontend.node(node_id))["remuda"]["boot_id"])


async def test_credential_refresh_of_a_localai_worker_is_no_restart(frontend: LiveFrontend) -> None:
    """It sends the registration it sent before; one that was started again has measured its machine anew."""
    body = frontend.registration(available_ram=5 << 30)
    node = (await frontend.worker.post("/api/node/register", json=body)).json()
    first = await boot_of(frontend, node["id"])
    await frontend.worker.post("/api/node/register", json=body)
    assert await boot_of(frontend, node["id"]) == first
    await frontend.worker.post("/api/node/register", json=body | {"available_ram": 4 << 30})
    assert await boot_of(frontend, node["id"]) != first
