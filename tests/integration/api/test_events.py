"""The stream of everything for consoles."""

from collections.abc import Callable

import httpx
import pytest

from tests.support.event_streams import Console, console
from tests.support.frontends import LiveFrontend
from tests.support.model_servers import ModelServer, model_server
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio


def has_node(name: str, status: str) -> Callable[[Console], bool]:
    def holds(shown: Console) -> bool:
        node = shown.named("nodes").get(name)
        return node is not None and node["status"] == status

    return holds


async def test_a_snapshot_comes_first_and_then_what_changes(frontend: LiveFrontend) -> None:
    node = await frontend.register("first")
    async with console(frontend.admin) as shown:
        await shown.until(lambda one: one.events)
        assert shown.names[0] == "snapshot"
        assert set(shown.shown) == {
            "nodes",
            "models",
            "replicas",
            "operations",
            "servers",
            "keys",
            "attention",
        }
        assert shown.named("nodes")["first"]["id"] == node["id"]
        second = await frontend.register("second")
        await shown.until(lambda one: "second" in one.named("nodes"))
        await frontend.admin.delete(f"/api/nodes/{second['id']}")
        await shown.until(lambda one: "second" not in one.named("nodes"))
        assert "snapshot" not in shown.names[1:]


async def test_a_console_that_was_cut_off_continues_where_it_was(frontend: LiveFrontend) -> None:
    async with console(frontend.admin) as shown:
        await shown.until(lambda one: one.events)
    await frontend.register("meanwhile")
    cut_at = len(shown.events)
    async with console(frontend.admin, known=shown):
        await shown.until(lambda one: "meanwhile" in one.named("nodes"))
    assert "snapshot" not in shown.names[cut_at:]


async def test_a_console_that_missed_nothing_hears_so(frontend: LiveFrontend) -> None:
    async with console(frontend.admin) as shown:
        await shown.until(lambda one: one.events)
        async with console(frontend.admin, place=shown.place) as other:
            await other.until(lambda one: one.events)
    assert other.events[0] == ("change", {})


@pytest.mark.parametrize("place", ["", "nonsense", "abc.1", "abc.", ".1"])
async def test_a_place_of_another_frontend_or_life_gets_everything(
    frontend: LiveFrontend, place: str
) -> None:
    async with console(frontend.admin, place=place) as shown:
        await shown.until(lambda one: one.events)
    assert shown.names[0] == "snapshot"


async def test_a_heartbeat_that_changes_nothing_is_no_event(frontend: LiveFrontend) -> None:
    node = await frontend.register("steady")
    async with console(frontend.admin) as shown:
        await shown.until(lambda one: "steady" in one.named("nodes"))
        seen, come = dict(shown.named("nodes")["steady"]), len(shown.events)
        for _ in range(3):
            await frontend.heartbeat(node["id"])
        marker = await frontend.register()
        await shown.until(lambda one: marker["name"] in one.named("nodes"))
        touched = [
            one["id"] for name, data in shown.events[come:] for one in data.get("nodes", {}).get("set", ())
        ]
    assert node["id"] not in touched
    assert "last_heartbeat" not in seen
    assert "heard_seconds_ago" not in seen["remuda"]


async def test_a_node_that_waits_for_approval_is_seen_and_its_approval_too(
    strict_frontend: LiveFrontend,
) -> None:
    async with console(strict_frontend.admin) as shown:
        await shown.until(lambda one: one.events)
        node = await strict_frontend.register("waiting")
        await shown.until(has_node("waiting", "pending"))
        item = next(one for one in shown.shown["attention"].values() if one["entity_id"] == node["id"])
        assert (item["code"], item["action"]["label"]) == ("node_pending", "Approve")
        listed = (await strict_frontend.admin.get("/api/attention")).json()["attention"]
        assert item in listed
        await strict_frontend.admin.request(item["action"]["method"], item["action"]["path"])
        await shown.until(has_node("waiting", "healthy"))
        await shown.until(lambda one: item["id"] not in one.shown["attention"])
        assert shown.named("nodes")["waiting"]["remuda"]["reasons"] == []


async def test_strangers_get_no_stream(open_frontend: LiveFrontend) -> None:
    reply = await open_frontend.anyone.get("/api/events")
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, 401)


async def test_a_revoked_key_ends_its_streams(open_frontend: LiveFrontend) -> None:
    made = (await open_frontend.admin.post("/api/keys", json={"name": "brief", "scope": "admin"})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    async with (
        httpx.AsyncClient(
            base_url=open_frontend.url, headers=headers, trust_env=False, verify=PLAIN
        ) as caller,
        console(caller) as shown,
    ):
        await shown.until(lambda one: one.events)
        await open_frontend.admin.delete(f"/api/keys/{made['id']}")
        await shown.until(lambda one: one.ended)
        refused = await caller.get("/api/events")
    assert refused.status_code == 401


async def test_each_gpu_of_several_is_shown_and_only_larger_changes_are_news(frontend: LiveFrontend) -> None:
    def figures(free: int) -> list[dict[str, object]]:
        card = {"total_vram": 24 << 30, "name": "RTX 3090"}
        return [{"index": 0, "available_vram": free, **card}, {"index": 1, "available_vram": 3 << 30, **card}]

    async def beat(sequence: int, free: int) -> None:
        report = {"boot_id": "boot-1", "sequence": sequence, "gpus": figures(free)}
        await frontend.heartbeat(node["id"], report=report)

    def free_of(shown: Console) -> list[int]:
        gpus = shown.named("nodes")["two"]["remuda"].get("gpus", ())
        return [gpu["available_vram"] for gpu in gpus]

    node = await frontend.register("two", remuda={"boot_id": "boot-1", "version": "0.1.0"})
    async with console(frontend.admin) as shown:
        await shown.until(lambda one: "two" in one.named("nodes"))
        await beat(1, (20 << 30) + 5)
        await shown.until(lambda one: free_of(one) == [20 << 30, 3 << 30])
        come = len(shown.events)
        await beat(2, (20 << 30) + 9)
        marker = await frontend.register()
        await shown.until(lambda one: marker["name"] in one.named("nodes"))
        touched = [one["id"] for _, data in shown.events[come:] for one in data.get("nodes", {})["set"]]
        assert node["id"] not in touched
        await beat(3, 6 << 30)
        await shown.until(lambda one: free_of(one) == [6 << 30, 3 << 30])
    listed = (await frontend.node(node["id"]))["remuda"]["gpus"]
    assert [gpu["available_vram"] for gpu in listed] == [6 << 30, 3 << 30]


async def test_what_is_declared_of_replicas_is_told_with_the_model(frontend: LiveFrontend) -> None:
    added = await frontend.admin.post("/api/models", json={"config": "name: several\nbackend: echo\n"})
    assert added.json()["model"]["wanted"]["origin"] == "default"

    def wanted(shown: Console) -> tuple[object, ...]:
        told = shown.named("models")["several"]["wanted"]
        return told["origin"], told["min_replicas"], told["max_replicas"], told.get("every_node", False)

    async with console(frontend.admin) as shown:
        await shown.until(lambda one: "several" in one.named("models"))
        body = {"model_name": "several", "max_replicas": 3}
        await frontend.admin.post("/api/nodes/scheduling", json=body)
        await shown.until(lambda one: wanted(one) == ("declared", 0, 3, False))
        await frontend.admin.post("/api/nodes/scheduling", json={"model_name": "several", "spread_all": True})
        await shown.until(lambda one: wanted(one) == ("declared", 0, 0, True))
        await frontend.admin.delete("/api/nodes/scheduling/several")
        await shown.until(lambda one: wanted(one) == ("default", 0, 0, False))


async def test_keys_that_others_make_change_and_revoke_are_told_without_their_secrets(
    frontend: LiveFrontend,
) -> None:
    def state(shown: Console) -> tuple[object, ...] | None:
        told = shown.named("keys").get("brief")
        return None if told is None else (told["state"], told.get("requests_per_minute"))

    async with console(frontend.admin) as shown:
        await shown.until(lambda one: one.events)
        made = (await frontend.admin.post("/api/keys", json={"name": "brief"})).json()
        await shown.until(lambda one: state(one) == ("active", None))
        assert made["key"] not in str(shown.events)
        path = f"/api/keys/{made['id']}"
        await frontend.admin.patch(path, json={"paused": True, "requests_per_minute": 5})
        await shown.until(lambda one: state(one) == ("paused", 5))
        await frontend.admin.delete(path)
        await shown.until(lambda one: state(one) is None)


async def test_servers_that_others_add_and_let_go_are_told_without_their_models_and_keys(
    frontend: LiveFrontend,
) -> None:
    async with model_server(ModelServer(key="sk-secret")) as rack, console(frontend.admin) as shown:
        await shown.until(lambda one: one.events)
        body = {"url": rack.url, "name": "rack", "key": "sk-secret"}
        added = await frontend.admin.post("/api/servers", json=body)
        assert added.status_code == 201
        await shown.until(lambda one: one.named("servers").get("rack", {}).get("up"))
        told = shown.named("servers")["rack"]
        assert (told["models_total"], told["models"]) == (len(added.json()["models"]), [])
        assert "sk-secret" not in str(shown.events)
        assert "asked_at" not in told
        await frontend.admin.delete("/api/servers/rack")
        await shown.until(lambda one: not one.named("servers"))
