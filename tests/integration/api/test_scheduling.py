"""What admins declare of replicas, by the contract's routes and ours, and the command for people."""

import json
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner

from remuda.cli.verbs import root
from tests.support.frontends import LiveFrontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ROUTE = "/api/nodes/scheduling"


async def add(frontend: LiveFrontend, name: str, more: str = "") -> None:
    reply = await frontend.admin.post("/api/models", json={"config": f"name: {name}\nbackend: echo\n{more}"})
    assert reply.status_code == 201


async def scheduled(frontend: LiveFrontend, model: str) -> dict[str, Any]:
    reply = await frontend.admin.get("/api/scheduling", params={"model": model})
    assert reply.status_code == 200
    [found] = reply.json()["models"]
    return dict(found)


async def test_declaration_is_stored_and_returned_as_the_contract_has_it(frontend: LiveFrontend) -> None:
    selector = {"gpu.vendor": "nvidia", "a": "b"}
    body = {"model_name": "Org/later", "node_selector": selector, "min_replicas": 1, "max_replicas": 3}
    stored = await frontend.admin.post(ROUTE, json={**body, "route_policy": "round_robin", "later": 7})
    assert stored.status_code == 200
    row = stored.json()
    assert json.loads(row["node_selector"]) == selector
    assert (row["min_replicas"], row["max_replicas"], row["spread_all"]) == (1, 3, False)
    assert (row["unsatisfiable_ticks"], row["route_policy"]) == (0, "round_robin")
    again = await frontend.admin.post(ROUTE, json={"model_name": "Org/later", "max_replicas": 2})
    assert again.json()["route_policy"] == "round_robin", "kept when it is left out"
    assert (again.json()["id"], again.json()["min_replicas"]) == (row["id"], 0)
    assert (await frontend.admin.get(f"{ROUTE}/Org/later")).json() == again.json()
    assert again.json() in (await frontend.admin.get(ROUTE)).json()
    assert (await frontend.admin.delete(f"{ROUTE}/Org/later")).status_code == 204
    assert (await frontend.admin.delete(f"{ROUTE}/Org/later")).status_code == 404
    assert (await frontend.admin.get(f"{ROUTE}/Org/later")).status_code == 404


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas (3) is more than max_replicas (2)"),
        ({"min_replicas": 1, "spread_all": True}, "excludes min_replicas and max_replicas"),
        ({"min_replicas": -1}, "min_replicas"),
        ({"route_policy": "random"}, "route_policy"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"node_selector": {"": "x"}}, "key must have at least one character"),
        ({"model_name": ""}, "model_name"),
    ],
)
async def test_what_cannot_be_wanted_is_refused(
    frontend: LiveFrontend, body: dict[str, Any], word: str
) -> None:
    reply = await frontend.admin.post(ROUTE, json={"model_name": "m", **body})
    assert reply.status_code == 400
    assert word in reply.json()["error"]["message"]


async def test_origin_says_whose_word_counts(frontend: LiveFrontend) -> None:
    await add(frontend, "declared", "max_replicas: 2\nselector: {rack: '1'}\nkeep_alive: 5m\n")
    found = await scheduled(frontend, "declared")
    assert (found["origin"], found["wanted"]) == ("configured", "none until it is asked for, at most 2")
    await frontend.admin.post(ROUTE, json={"model_name": "declared", "max_replicas": 4, "pinned": True})
    found = await scheduled(frontend, "declared")
    assert (found["origin"], found["max_replicas"], found["pinned"]) == ("declared", 4, True)
    assert (found["selector"], found["keep_alive"]) == ({"rack": "1"}, "5m"), "those that it leaves alone"
    await frontend.admin.delete(f"{ROUTE}/declared")
    assert (await scheduled(frontend, "declared"))["origin"] == "configured"


@pytest.mark.parametrize("more", ["min_replicas: 3\nmax_replicas: 2\n", "replicas: all\nmin_replicas: 1\n"])
async def test_yaml_that_contradicts_itself_is_refused(frontend: LiveFrontend, more: str) -> None:
    reply = await frontend.admin.post("/api/models", json={"config": f"name: odd\nbackend: echo\n{more}"})
    assert reply.status_code == 400
    assert "min_replicas" in reply.json()["error"]["message"]


async def test_missing_minimum_says_what_it_waits_for(frontend: LiveFrontend) -> None:
    await add(frontend, "wanted", "min_replicas: 1\nselector: {rack: none}\n")
    await frontend.register()

    seen: dict[str, Any] = {}

    async def told() -> bool:
        seen.update(await scheduled(frontend, "wanted"))
        return "no label rack=none" in seen.get("waiting", "")

    try:
        await wait_until(told, within=30)
    except AssertionError:
        nodes = (await frontend.admin.get("/api/nodes")).json()
        pytest.fail(f"what is told of the model is {seen}, and of the nodes {nodes}")


async def run(frontend: LiveFrontend, *words: str) -> str:
    key = frontend.running.first_admin_key or "none"
    arguments = ["models", "scale", *words, "--url", frontend.url, "--api-key", key]
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(root, arguments))
    assert done.exit_code == 0, done.output
    return done.output


async def test_misspelt_field_is_told_and_left_out(frontend: LiveFrontend) -> None:
    """Not refused: peers may send fields that only they know."""
    await add(frontend, "spelt")
    stored = await frontend.admin.post(ROUTE, json={"model_name": "spelt", "min_replica": 1})
    assert (stored.status_code, stored.json()["min_replicas"]) == (200, 0)
    assert stored.json()["warning"].startswith("'min_replica' is not a known field")
    assert stored.json()["warning"].endswith("and it is left out")


async def test_what_is_declared_for_a_model_that_is_not_there_is_told(frontend: LiveFrontend) -> None:
    stored = await frontend.admin.post(ROUTE, json={"model_name": "soon", "min_replicas": 1})
    warning = "there is no model 'soon' yet: this counts once it is added"
    assert stored.json()["warning"] == warning
    found = await scheduled(frontend, "soon")
    assert (found["absent"], found["origin"], found["min_replicas"]) == (True, "declared", 1)
    assert "soon: no such model yet; this counts once it is added" in await run(frontend)
    await add(frontend, "soon")
    assert "absent" not in await scheduled(frontend, "soon")
    assert "warning" not in (await frontend.admin.get(f"{ROUTE}/soon")).json()
    await frontend.admin.post(ROUTE, json={"model_name": "never", "min_replicas": 1})
    await run(frontend, "--reset", "never")
    assert (await frontend.admin.get(f"{ROUTE}/never")).status_code == 404


async def test_command_sets_shows_and_resets(frontend: LiveFrontend) -> None:
    await add(frontend, "scaled")
    shown = await run(frontend, "scaled", "--max", "3", "--keep-alive", "10m", "--no-pin")
    assert "none until it is asked for, at most 3" in shown
    more = await run(frontend, "scaled", "--selector", "gpu.vendor=nvidia,rack=2", "--json")
    [found] = json.loads(more.splitlines()[-1])["models"]  # Above it is the log of the frontend.
    assert (found["max_replicas"], found["keep_alive"]) == (3, "10m"), "what is not named stays"
    assert found["selector"] == {"gpu.vendor": "nvidia", "rack": "2"}
    assert "one on every node" in await run(frontend, "scaled", "--every-node")
    assert "exactly 2" in await run(frontend, "scaled", "--min", "2", "--max", "2")
    assert "one while it is used" in await run(frontend, "scaled", "--reset")
