"""What a worker says when it leaves, and what an unknown id is answered on every route."""

import pytest

from remuda.gateway.app import api_routes
from tests.support.frontends import Json, LiveFrontend

pytestmark = pytest.mark.anyio


async def say(frontend: LiveFrontend, method: str, path: str) -> tuple[int, Json]:
    reply = await frontend.worker.request(method, f"/api/node/{path}")
    return reply.status_code, reply.json()


async def test_drain_resume_and_deregister_answer_in_the_contracts_words(frontend: LiveFrontend) -> None:
    node = (await frontend.register())["id"]
    assert await say(frontend, "POST", f"{node}/drain") == (200, {"message": "node set to draining"})
    assert await frontend.status(node) == "draining"
    assert await say(frontend, "POST", f"{node}/resume") == (200, {"message": "node resumed"})
    assert await frontend.status(node) == "healthy"
    assert await say(frontend, "POST", f"{node}/deregister") == (200, {"message": "node set to offline"})
    assert await frontend.status(node) == "offline"


async def test_delete_is_a_soft_goodbye_too(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    assert await say(frontend, "DELETE", node["id"]) == (200, {"message": "node set to offline"})
    assert await frontend.status(node["id"]) == "offline"
    assert (await frontend.register(node["name"]))["id"] == node["id"]


async def test_the_models_of_a_node_are_a_list(frontend: LiveFrontend) -> None:
    node = (await frontend.register())["id"]
    reply = await frontend.worker.get(f"/api/node/{node}/models")
    assert (reply.status_code, reply.json()) == (200, [])


async def test_a_workers_own_drain_ends_with_its_next_registration(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await say(frontend, "POST", f"{node['id']}/drain")
    await frontend.register(node["name"])
    assert await frontend.status(node["id"]) == "healthy"


async def test_a_worker_cannot_lift_an_admins_drain(frontend: LiveFrontend) -> None:
    node = (await frontend.register())["id"]
    await frontend.admin.post(f"/api/nodes/{node}/drain")
    await say(frontend, "POST", f"{node}/resume")
    assert await frontend.status(node) == "draining"


ROUTES = sorted(
    (method, route.path_format)
    for route in api_routes()
    if "{node_id}" in route.path_format
    for method in route.methods or ()
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("unknown", ["0b6f3c0e-6f43-4f0a-9a53-1d1f6d3f2c11", "no such", "%00", "ö" * 300])
async def test_an_unknown_node_is_not_found_anywhere(
    frontend: LiveFrontend, method: str, path: str, unknown: str
) -> None:
    body = {"labels": {}, "vram-budget": {"value": ""}, "max-replicas-per-model": {"value": 1}}
    body |= {verb: {"backend": "llama-cpp"} for verb in ("install", "upgrade", "delete")}
    body |= {"model-files-budget": {"value": "1GB"}, "free": {"dry_run": True}}
    body |= {"bus-trouble": {"boot_id": "boot-1", "sequence": 1, "reason": "no answer"}}
    url = path.format(node_id=unknown, key="k", model="m")
    reply = await frontend.worker.request(method, url, json=body.get(path.rpartition("/")[2]))
    assert reply.status_code == 404
    assert reply.json()["error"].keys() - {"reason", "hint"} == {"code", "message", "type"}
    assert (reply.json()["error"]["code"], reply.json()["error"]["type"]) == (404, "node_error")
    assert "node" in reply.json()["error"]["message"]
