"""What an admin sets on a node: labels, the VRAM budget, the most replicas per model."""

from typing import Any

import pytest

from remuda.core import limits
from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio

GIB = 1 << 30


async def test_put_replaces_all_labels(frontend: LiveFrontend) -> None:
    labels = f"/api/nodes/{(await frontend.register(labels={'a': '1'}))['id']}/labels"
    reply = await frontend.admin.put(labels, json={"zone": "x"})
    assert (reply.status_code, reply.json()) == (200, {"zone": "x"})
    assert (await frontend.admin.get(labels)).json() == {"zone": "x"}


async def test_patch_merges_labels(frontend: LiveFrontend) -> None:
    node = await frontend.register(labels={"a": "1", "b": "1"})
    labels = f"/api/nodes/{node['id']}/labels"
    reply = await frontend.admin.patch(labels, json={"b": "2", "c": "3"})
    automatic = {"node.name": node["name"], "node.replica-slots": "1"}
    assert (reply.status_code, reply.json()) == (200, {"a": "1", "b": "2", "c": "3", **automatic})


@pytest.mark.parametrize("key", ["zone", "example.com/zone", "a/b/c", "ö", "a%2Fb?#&"])
async def test_a_label_of_any_name_can_be_taken_off(frontend: LiveFrontend, key: str) -> None:
    labels = f"/api/nodes/{(await frontend.register())['id']}/labels"
    await frontend.admin.put(labels, json={key: "v", "kept": "v"})
    reply = await frontend.admin.delete(f"{labels}/{quoted(key)}")
    assert (reply.status_code, reply.content) == (204, b"")
    assert (await frontend.admin.get(labels)).json() == {"kept": "v"}


async def test_taking_off_a_label_twice_is_no_error(frontend: LiveFrontend) -> None:
    labels = f"/api/nodes/{(await frontend.register())['id']}/labels"
    assert (await frontend.admin.delete(f"{labels}/none")).status_code == 204


async def test_admins_cannot_heap_up_labels_without_end(frontend: LiveFrontend) -> None:
    labels = f"/api/nodes/{(await frontend.register())['id']}/labels"
    full = {f"k{number}": "v" for number in range(limits.NODE_LABELS_MAX)}
    assert (await frontend.admin.put(labels, json=full)).status_code == 200
    reply = await frontend.admin.patch(labels, json={"one-more": "v"})
    assert (reply.status_code, reply.json()["error"]["message"][:7]) == (400, "labels:")
    assert (await frontend.admin.patch(labels, json={"k0": "other"})).status_code == 200


@pytest.mark.parametrize(("budget", "resolved"), [("80%", 8), ("0.5", 5), ("4GiB", 4), (str(3 * GIB), 3)])
async def test_a_budget_caps_what_is_free(frontend: LiveFrontend, budget: str, resolved: int) -> None:
    node = (await frontend.register(total_vram=10 * GIB, available_vram=9 * GIB))["id"]
    reply = await frontend.admin.put(f"/api/nodes/{node}/vram-budget", json={"value": budget})
    assert (reply.status_code, reply.json()) == (200, {"vram_budget": budget})
    shown = await frontend.node(node)
    assert (shown["vram_budget_bytes"], shown["available_vram"]) == (resolved * GIB, resolved * GIB)
    assert (shown["vram_budget_manually_set"], shown["total_vram"]) == (True, 10 * GIB)


async def test_an_empty_budget_clears_the_cap(frontend: LiveFrontend) -> None:
    node = (await frontend.register(total_vram=10, available_vram=9, vram_budget="50%"))["id"]
    reply = await frontend.admin.put(f"/api/nodes/{node}/vram-budget", json={"value": ""})
    assert (reply.status_code, reply.json()) == (200, {"vram_budget": ""})
    assert (await frontend.node(node))["available_vram"] == 9


async def test_a_budget_goes_back_to_the_workers_own(frontend: LiveFrontend) -> None:
    node = (await frontend.register(total_vram=10, available_vram=9, vram_budget="50%"))["id"]
    await frontend.admin.put(f"/api/nodes/{node}/vram-budget", json={"value": "10%"})
    reply = await frontend.admin.delete(f"/api/nodes/{node}/vram-budget")
    assert (reply.status_code, reply.json()) == (200, {"reset": True})
    shown = await frontend.node(node)
    assert (shown["vram_budget"], shown["vram_budget_manually_set"]) == ("50%", False)


async def test_replicas_are_set_and_reset(frontend: LiveFrontend) -> None:
    node = (await frontend.register(max_replicas_per_model=2))["id"]
    path = f"/api/nodes/{node}/max-replicas-per-model"
    reply = await frontend.admin.put(path, json={"value": 5})
    assert (reply.status_code, reply.json()) == (200, {"max_replicas_per_model": 5})
    shown = await frontend.node(node)
    assert (shown["max_replicas_per_model"], shown["max_replicas_per_model_manually_set"]) == (5, True)
    assert shown["labels"]["node.replica-slots"] == "5"
    reply = await frontend.admin.delete(path)
    assert (reply.status_code, reply.json()) == (200, {"reset": True})
    shown = await frontend.node(node)
    assert (shown["max_replicas_per_model"], shown["max_replicas_per_model_manually_set"]) == (2, False)


def quoted(key: str) -> str:
    return "".join(f"%{byte:02X}" for byte in key.encode())


@pytest.mark.parametrize(("value", "resolved"), [("40GiB", 40 * GIB), ("50%", 50 * GIB), ("", None)])
async def test_a_budget_for_model_files_is_set_and_reset(
    frontend: LiveFrontend, value: str, resolved: int | None
) -> None:
    ours: dict[str, Any] = {
        "remuda": {"version": "0.2.0", "boot_id": "b"},
        "total_disk": 100 * GIB,
        "available_disk": GIB,
    }
    registered = await frontend.register("", **ours)
    node = registered["id"]
    path = f"/api/nodes/{node}/model-files-budget"
    reply = await frontend.admin.put(path, json={"value": value})
    assert (reply.status_code, reply.json()) == (200, {"model_files_budget": value})
    await frontend.register(registered["name"], **ours)
    shown = (await frontend.admin.get(f"/api/nodes/{node}/model-files")).json()
    assert (shown.get("budget_bytes"), shown["budget_manually_set"]) == (resolved, True)
    reply = await frontend.admin.delete(path)
    assert (reply.status_code, reply.json()) == (200, {"reset": True})
    shown = (await frontend.admin.get(f"/api/nodes/{node}/model-files")).json()
    assert ("budget_bytes" in shown, shown["budget_manually_set"]) == (False, False)


async def test_files_of_a_peer_that_does_not_report_them_are_not_shown(frontend: LiveFrontend) -> None:
    node = (await frontend.register())["id"]
    for reply in (
        await frontend.admin.get(f"/api/nodes/{node}/model-files"),
        await frontend.admin.post(f"/api/nodes/{node}/model-files/free", json={}),
    ):
        assert reply.status_code == 409
        assert "LocalAI's worker, which does not report its files" in reply.json()["error"]["message"]
    assert (await frontend.admin.get("/api/nodes/none/model-files")).status_code == 404


@pytest.mark.parametrize("value", ["much", "120%", "-1GB", "0"])
async def test_a_budget_for_model_files_that_cannot_be_is_refused(frontend: LiveFrontend, value: str) -> None:
    node = (await frontend.register())["id"]
    reply = await frontend.admin.put(f"/api/nodes/{node}/model-files-budget", json={"value": value})
    assert reply.status_code == 400
    assert "budget for model files" in reply.json()["error"]["message"]
