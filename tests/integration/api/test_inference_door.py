"""OpenAI's API on a whole frontend: its own shape of errors, the frontend's keys, and no way around them."""

import pytest

from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio

ASK = {"model": "none", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


async def test_on_loopback_everyone_may_ask(frontend: LiveFrontend) -> None:
    reply = await frontend.anyone.post(CHAT, json=ASK)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert (await frontend.anyone.get("/v1/models")).json()["object"] == "list"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/rerank"])
async def test_clients_may_leave_v1_out(frontend: LiveFrontend, path: str) -> None:
    body = {**ASK, "prompt": "p", "input": "i", "query": "q", "documents": ["d"]}
    reply = await frontend.anyone.post(path.removeprefix("/v1"), json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert (await frontend.anyone.get("/models")).json()["object"] == "list"
    assert (await frontend.anyone.get("/models/none")).json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", "/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/models"),
        ("GET", "/v1/models/m"),
    ],
)
async def test_on_a_network_a_key_is_asked_for(open_frontend: LiveFrontend, method: str, path: str) -> None:
    reply = await open_frontend.anyone.request(method, path, json=ASK)
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_the_registration_token_is_no_key(open_frontend: LiveFrontend) -> None:
    assert (await open_frontend.worker.post(CHAT, json=ASK)).status_code == 401


async def test_a_key_for_inference_opens_this_and_nothing_else(open_frontend: LiveFrontend) -> None:
    wanted = {"name": "app", "models": ["qwen"]}
    made = (await open_frontend.admin.post("/api/keys", json=wanted)).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    assert made["models"] == ["qwen"]
    assert (await open_frontend.anyone.get("/v1/models", headers=headers)).status_code == 200
    assert (await open_frontend.anyone.post(CHAT, json=ASK, headers=headers)).status_code == 404
    for path in ("/api/nodes", "/api/keys", "/metrics"):
        assert (await open_frontend.anyone.get(path, headers=headers)).status_code == 403


async def test_an_admins_key_is_for_everything(open_frontend: LiveFrontend) -> None:
    assert (await open_frontend.admin.get("/v1/models")).status_code == 200
    refused = await open_frontend.admin.post(
        "/api/keys", json={"name": "x", "scope": "admin", "models": ["qwen"]}
    )
    assert refused.status_code == 400


async def test_figures_of_inference_are_among_the_frontends(frontend: LiveFrontend) -> None:
    await frontend.anyone.post(CHAT, json=ASK)
    counted = 'remuda_inference_requests_total{kind="chat",model="",node="",status="404"}'
    assert counted in (await frontend.admin.get("/metrics")).text


async def test_a_model_that_is_not_being_loaded_has_no_load_status(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.get("/api/models/none/load-status")
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")


async def test_load_status_is_for_every_key_that_is_for_the_model(open_frontend: LiveFrontend) -> None:
    made = (await open_frontend.admin.post("/api/keys", json={"name": "looks", "models": ["qwen"]})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}

    async def status(model: str, headers: dict[str, str]) -> int:
        path = f"/api/models/{model}/load-status"
        return (await open_frontend.anyone.get(path, headers=headers)).status_code

    found = [await status("qwen", headers), await status("other", headers), await status("qwen", {})]
    assert found == [404, 403, 401]


async def test_names_that_are_nearly_right_are_answered_with_those_that_are(frontend: LiveFrontend) -> None:
    config = {"config": "name: smollm2-135m-instruct\nbackend: echo\n"}
    assert (await frontend.admin.post("/api/models", json=config)).status_code == 201
    await frontend.register("attic")
    removed = await frontend.admin.delete("/api/models/smollm2")
    unloaded = await frontend.admin.post("/api/models/smollm2-135m-instruct/unload", json={"node": "atic"})
    told = [reply.json()["error"]["message"] for reply in (removed, unloaded)]
    assert (removed.status_code, unloaded.status_code) == (404, 404)
    assert "did you mean smollm2-135m-instruct?" in told[0]
    assert "did you mean attic?" in told[1]


async def test_a_model_is_monitored_by_its_name(frontend: LiveFrontend) -> None:
    config = {"config": "name: watched\nbackend: echo\n"}
    assert (await frontend.admin.post("/api/models", json=config)).status_code == 201
    unloaded = {"state": 0, "memory": {"total": 0, "breakdown": {}}}
    asked = await frontend.admin.get("/backend/monitor?model=watched")
    in_body = await frontend.admin.request("GET", "/backend/monitor", json={"model": "watched"})
    assert (asked.status_code, asked.json(), in_body.json()) == (200, unloaded, unloaded)
    assert (await frontend.admin.get("/backend/monitor?model=nobody")).status_code == 404
    assert (await frontend.admin.get("/backend/monitor")).status_code == 400
