"""Backends over HTTP: pages of them, jobs about them everywhere and on one node, and what could be newer."""

from collections.abc import AsyncIterator

import anyio
import httpx
import pytest

from remuda.gateway.admin import operations
from tests.integration.api.ops_frontends import (
    listed,
    localai_worker,
    operation,
    ops_frontend,
    our_node,
    until_status,
)
from tests.support.frontends import Json, LiveFrontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OLD = {"name": "versioned", "version": "1.0", "digest": "sha256:old"}
CPU = {
    "name": "cpu-llama-cpp",
    "alias": "llama-cpp",
    "digest": "sha256:cpu",
    "uri": "registry.example/backends:cpu-llama-cpp",
    "installed_at": "2026-06-01T12:00:00Z",
}


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with ops_frontend(tmp_path_factory.mktemp("backends")) as live:
        yield live


@pytest.fixture
async def frontend(shared: LiveFrontend) -> AsyncIterator[LiveFrontend]:
    """Without nodes, and without anything to do for one."""
    yield shared
    for node in (await shared.admin.get("/api/nodes")).json():
        assert (await shared.admin.delete(f"/api/nodes/{node['id']}")).status_code == 200
    await wait_until(lambda: nothing_to_do(shared), what="the end of what nodes had to do")


async def nothing_to_do(frontend: LiveFrontend) -> bool:
    return not (await page(frontend))["processingBackends"]


async def page(frontend: LiveFrontend, **query: str | int) -> Json:
    reply = await frontend.admin.get("/api/backends", params=query)
    assert reply.status_code == 200, reply.text
    shown: Json = reply.json()
    return shown


def named(shown: Json, name: str) -> Json:
    item: Json = next(one for one in shown["backends"] if one["name"] == name)
    return item


# Pages.


async def test_a_page_has_the_fields_of_the_contract(frontend: LiveFrontend) -> None:
    shown = await page(frontend)
    assert shown.keys() == {
        "backends",
        "repositories",
        "allTags",
        "processingBackends",
        "taskTypes",
        "availableBackends",
        "installedBackends",
        "currentPage",
        "totalPages",
        "prevPage",
        "nextPage",
        "systemCapability",
        "preferDevelopmentBackends",
    }
    assert [one["name"] for one in shown["repositories"]] == ["mine", "remuda"]
    item = named(shown, "llama-cpp")
    assert (item["id"], item["isMeta"], item["installed"], item["nodes"]) == (
        "mine@llama-cpp",
        True,
        False,
        None,
    )


async def test_what_backends_are_for_is_told_by_name(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.get("/api/backends/usecases")
    assert reply.status_code == 200, reply.text
    assert reply.json()["llama-cpp"] == ["chat", "completion"]
    assert reply.json()["versioned"] == []


async def test_pages_are_cut_searched_and_sorted(frontend: LiveFrontend) -> None:
    assert [one["name"] for one in (await page(frontend, term="inference c", items=1))["backends"]] == [
        "llama-cpp"
    ]
    second = await page(frontend, items=2, page=2, sort="name", order="desc")
    assert (len(second["backends"]), second["currentPage"], second["prevPage"], second["nextPage"]) == (
        2,
        2,
        1,
        3,
    )
    assert all("LLM" in one["tags"] for one in (await page(frontend, tag="llm"))["backends"])
    assert (await page(frontend, page=999))["currentPage"] == (await page(frontend))["totalPages"]


async def test_a083_entries_say_which_node_has_what_since_when_and_from_where(frontend: LiveFrontend) -> None:
    node = await our_node(frontend, "has", CPU)
    await our_node(frontend, "lacks")
    shown = await page(frontend)
    assert named(shown, "cpu-llama-cpp")["nodes"] == [
        {
            "node_id": node["id"],
            "node_name": "has",
            "node_status": "healthy",
            "version": "",
            "digest": "sha256:cpu",
            "uri": "registry.example/backends:cpu-llama-cpp",
            "installed_at": "2026-06-01T12:00:00Z",
        }
    ]
    meta = named(shown, "llama-cpp")
    assert (meta["installed"], meta["metaBackendFor"]) == (True, "cpu-llama-cpp")
    assert shown["installedBackends"] == 1


async def test_a084_the_first_nodes_version_stands_for_the_whole(frontend: LiveFrontend) -> None:
    await our_node(frontend, "a", OLD)
    await our_node(frontend, "b", {**OLD, "version": "1.5"})
    [item] = (await frontend.admin.get("/backends")).json()
    assert (item["name"], item["version"], len(item["nodes"])) == ("versioned", "1.0", 2)


async def test_what_is_being_done_is_on_the_page(frontend: LiveFrontend) -> None:
    node = await our_node(frontend, "busy")
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    job = (await frontend.admin.post("/api/backends/install/llama-cpp")).json()["jobID"]
    shown = await page(frontend)
    assert (shown["processingBackends"], shown["taskTypes"]) == (
        {"llama-cpp": job},
        {"llama-cpp": "Installation"},
    )
    assert (named(shown, "llama-cpp")["processing"], named(shown, "llama-cpp")["jobID"]) == (True, job)


# Jobs everywhere.


async def test_an_install_everywhere_is_answered_with_a_job(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "one") as worker:
        reply = await frontend.admin.post("/api/backends/install/mine%2540llama-cpp")
        assert (reply.status_code, reply.json().keys()) == (200, {"jobID", "message"})
        job = reply.json()["jobID"]
        await until_status(frontend, job, "succeeded")
        assert worker.heard("backend.install")[0]["backend"] == "llama-cpp"
    shown = (await frontend.admin.get(f"/api/backends/job/{job}")).json()
    assert (shown["completed"], shown["progress"], shown["message"]) == (True, 100, "completed")


async def test_a_job_nobody_knows_counts_as_queued(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.get("/api/backends/job/unknown")
    assert reply.status_code == 200
    assert (reply.json()["queued"], reply.json()["message"]) == (True, "Operation queued")


async def test_a_build_for_certain_hardware_goes_to_the_nodes_it_fits(frontend: LiveFrontend) -> None:
    await our_node(frontend, "gpu", capability="nvidia")
    await our_node(frontend, "cpu")
    reply = await frontend.admin.post("/api/backends/install/cuda12-llama-cpp")
    assert reply.status_code == 200
    shown = (await frontend.admin.get(f"/api/ops/{reply.json()['jobID']}")).json()
    skipped = {step["node_name"]: step["state"] == "skipped" for step in shown["steps"]}
    assert skipped == {"gpu": False, "cpu": True}


async def test_a076_a_build_for_certain_hardware_is_refused_for_all(frontend: LiveFrontend) -> None:
    await our_node(frontend, "gpu", capability="nvidia")
    reply = await frontend.admin.post("/backends/apply", json={"id": "cuda12-llama-cpp"})
    assert reply.status_code == 409
    refused = reply.json()
    assert refused.keys() == {"error", "code", "meta_alternative"}
    assert (refused["code"], refused["meta_alternative"]) == ("concrete_backend_requires_target", "llama-cpp")


async def test_a075_a_source_outside_the_galleries_reaches_the_worker(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "one") as worker:
        body = {"uri": "127.0.0.1:1/me/mine:v1", "name": "mine", "alias": "other"}
        reply = await frontend.admin.post("/api/backends/install-external", json=body)
        await until_status(frontend, reply.json()["jobID"], "succeeded")
        [sent] = worker.heard("backend.install")
    told = {**body, "backend": "mine", "uri": "oci://127.0.0.1:1/me/mine:v1"}
    assert {key: sent[key] for key in ("uri", "name", "alias", "backend")} == told
    assert not sent.get("force")
    assert (await frontend.admin.post("/api/backends/install-external", json={})).status_code == 400


async def test_another_reference_takes_the_place_of_what_has_the_name(frontend: LiveFrontend) -> None:
    """LocalAI's workers leave alone what is installed under a name, unless they are told otherwise."""
    uri = "oci://127.0.0.1:1/me/mine:v1"
    listing = {"name": "mine", "is_system": False, "is_meta": False, "uri": uri}
    async with localai_worker(frontend, "one", listing) as worker:
        await until_listed(frontend, worker.id)
        body = {"uri": "127.0.0.1:1/me/mine:v2", "name": "mine"}
        reply = await frontend.admin.post("/api/backends/install-external", json=body)
        await until_status(frontend, reply.json()["jobID"], "succeeded")
        [sent] = worker.heard("backend.install")
        assert (sent["uri"], sent["force"]) == ("oci://127.0.0.1:1/me/mine:v2", True)
        reply = await frontend.admin.post("/api/backends/upgrade/mine")
        await until_status(frontend, reply.json()["jobID"], "succeeded")
        [sent] = worker.heard("backend.upgrade")
    assert (reply.status_code, sent["uri"], sent["name"]) == (200, uri, "mine")


async def test_lists_tell_where_a_backend_came_from(frontend: LiveFrontend) -> None:
    listing = {
        "name": "of-the-machine",
        "is_system": True,
        "is_meta": True,
        "gallery_url": "https://example.org/index.yaml",
    }
    async with localai_worker(frontend, "lists", listing) as worker:
        await until_listed(frontend, worker.id)
        [shown] = (await frontend.admin.get(f"/api/nodes/{worker.id}/backends")).json()
        everywhere = (await frontend.admin.get("/backends")).json()
    assert shown == listing
    [item] = [one for one in everywhere if one["name"] == "of-the-machine"]
    told = (item["Name"], item["IsSystem"], item["IsMeta"], item["Metadata"]["gallery_url"])
    assert told == ("of-the-machine", True, True, "https://example.org/index.yaml")


async def test_a_page_says_which_hardware_the_fleet_has(frontend: LiveFrontend) -> None:
    await our_node(frontend, "with-gpu", capability="nvidia-cuda-12")
    assert "nvidia-cuda-12" in (await page(frontend))["systemCapability"].split(", ")


async def test_a093_a_deletion_is_recorded_for_nodes_that_are_away(frontend: LiveFrontend) -> None:
    node = await our_node(frontend, "away", CPU)
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    job = (await frontend.admin.post("/api/backends/delete/llama-cpp")).json()["jobID"]
    item = await listed(frontend, job)
    assert item is not None
    assert (item["taskType"], item["isDeletion"]) == ("deletion", True)
    assert [one["status"] for one in item["nodes"]] == ["queued"]


async def test_a095_a_deletion_shows_its_result_node_by_node(frontend: LiveFrontend) -> None:
    listing = {"name": "cpu-llama-cpp", "is_system": False, "is_meta": False}
    async with localai_worker(frontend, "has", listing) as worker:
        await until_listed(frontend, worker.id)
        job = (await frontend.admin.post("/api/backends/delete/llama-cpp")).json()["jobID"]
        done = await until_status(frontend, job, "succeeded")
        assert [said["backend"] for said in worker.heard("backend.delete")] == ["cpu-llama-cpp", "llama-cpp"]
    assert [(step["node_name"], step["state"]) for step in done["steps"]] == [("has", "succeeded")]
    raw = (await frontend.admin.get(f"/backends/jobs/{job}")).json()
    assert [(one["node_name"], one["status"]) for one in raw["nodes"]] == [("has", "success")]
    assert (raw["deletion"], raw["processed"]) == (True, True)


async def test_a094_a096_a_deletion_is_an_operation_like_any_other_without_a_step_for_the_frontend(
    frontend: LiveFrontend,
) -> None:
    await our_node(frontend, "one")
    job = (await frontend.admin.post("/api/backends/delete/llama-cpp")).json()["jobID"]
    shown = await operation(frontend, job)
    assert (shown["kind"], [step["node_name"] for step in shown["steps"]]) == ("remove", ["one"])


async def until_listed(frontend: LiveFrontend, node_id: str) -> list[Json] | None:
    async def told() -> bool:
        return (await frontend.admin.get(f"/api/nodes/{node_id}/backends")).status_code == 200

    await wait_until(told)
    shown: list[Json] | None = (await frontend.admin.get(f"/api/nodes/{node_id}/backends")).json()
    return shown


# One node.


async def test_a073_an_install_on_one_node_reaches_no_other(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "one") as one, localai_worker(frontend, "two") as two:
        path = f"/api/nodes/{one.id}/backends/install"
        reply = await frontend.admin.post(path, json={"backend": "llama-cpp"})
        assert (reply.status_code, reply.json().keys()) == (202, {"jobID", "statusUrl", "message"})
        job = reply.json()["jobID"]
        assert reply.json()["statusUrl"] == f"/api/backends/job/{job}"
        await until_status(frontend, job, "succeeded")
        assert (len(one.heard("backend.install")), two.heard("backend.install")) == (1, [])
        assert (await operation(frontend, job))["selection"].startswith("node ")


async def test_a_node_says_what_it_has(frontend: LiveFrontend) -> None:
    has, empty = await our_node(frontend, "has", CPU), await our_node(frontend, "empty")
    [item] = await until_listed(frontend, has["id"]) or []
    assert (item["name"], item["uri"], item["installed_at"]) == (
        "cpu-llama-cpp",
        CPU["uri"],
        CPU["installed_at"],
    )
    assert await until_listed(frontend, empty["id"]) is None
    agent = await frontend.register("agent", node_type="agent")
    assert await until_listed(frontend, agent["id"]) == []


async def test_a_node_that_has_not_told_what_it_has_is_asked(frontend: LiveFrontend) -> None:
    listing = {"name": "cpu-llama-cpp", "is_system": False, "is_meta": False, "digest": "sha256:x"}
    async with localai_worker(frontend, "theirs", listing) as worker:
        [item] = await until_listed(frontend, worker.id) or []
    assert (item["name"], item["digest"]) == ("cpu-llama-cpp", "sha256:x")


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("install", {}, 400),
        ("upgrade", {}, 400),
        ("delete", {}, 400),
        ("install", {"backend": "lama-cpp"}, 404),
        ("upgrade", {"backend": "llama-cpp"}, 404),
        ("delete", {"backend": "lama-cpp"}, 404),
        ("install", {"backend": "vllm"}, 409),
        ("install", {"backend": "llama-cpp", "backend_galleries": "{"}, 400),
    ],
)
async def test_what_one_node_cannot_do_is_refused(
    frontend: LiveFrontend, verb: str, body: Json, status: int
) -> None:
    node = await our_node(frontend, "one")
    reply = await frontend.admin.post(f"/api/nodes/{node['id']}/backends/{verb}", json=body)
    assert reply.status_code == status, reply.text
    assert (await frontend.admin.post(f"/api/nodes/nobody/backends/{verb}", json=body)).status_code in (
        400,
        404,
    )


async def test_a_deletion_on_one_node_is_answered_when_it_is_gone(frontend: LiveFrontend) -> None:
    listing = {"name": "cpu-llama-cpp", "is_system": False, "is_meta": False}
    async with localai_worker(frontend, "one", listing) as worker:
        await until_listed(frontend, worker.id)
        path = f"/api/nodes/{worker.id}/backends/delete"
        reply = await frontend.admin.post(path, json={"backend": "llama-cpp"})
        assert (reply.status_code, reply.json()) == (200, {"message": "backend deleted"})
        assert [said["backend"] for said in worker.heard("backend.delete")] == ["cpu-llama-cpp", "llama-cpp"]


async def test_a_deletion_that_takes_long_goes_on_and_holds_nobody_else(
    frontend: LiveFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "DONE_WITHIN", operations.DONE_WITHIN / 120)
    node = await our_node(frontend, "slow", CPU)
    await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    replies: list[httpx.Response] = []

    async def delete() -> None:
        path = f"/api/nodes/{node['id']}/backends/delete"
        replies.append(await frontend.admin.post(path, json={"backend": "llama-cpp"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete)
        await our_node(frontend, "other")
        assert (await frontend.admin.get("/api/operations")).status_code == 200
        assert replies == []
    assert replies[0].status_code == 504
    assert "continues as operation" in replies[0].json()["error"]["message"]


# Upgrades.


async def test_a097_what_nodes_have_is_held_against_the_gallery(frontend: LiveFrontend) -> None:
    assert (await frontend.admin.get("/api/backends/upgrades")).json() == {}
    a, b = await our_node(frontend, "a", OLD), await our_node(frontend, "b", {**OLD, "version": "1.5"})
    await our_node(frontend, "c", OLD)
    found = (await frontend.admin.post("/api/backends/upgrades/check")).json()
    assert found == {
        "versioned": {
            "backend_name": "versioned",
            "installed_version": "1.0",
            "available_version": "2.0",
            "installed_digest": "sha256:old",
            "node_drift": [{"node_id": b["id"], "node_name": "b", "version": "1.5", "digest": "sha256:old"}],
        }
    }
    assert a["id"] != b["id"]


async def test_a085_an_upgrade_goes_to_the_nodes_that_have_it(frontend: LiveFrontend) -> None:
    await our_node(frontend, "has", OLD)
    await our_node(frontend, "lacks")
    reply = await frontend.admin.post("/api/backends/upgrade/versioned")
    assert (reply.status_code, reply.json().keys()) == (200, {"jobID", "uuid", "statusUrl", "message"})
    shown = await operation(frontend, reply.json()["jobID"])
    assert [step["node_name"] for step in shown["steps"]] == ["has"]


async def test_a086_an_upgrade_of_what_no_node_has_is_refused_and_leaves_nothing(
    frontend: LiveFrontend,
) -> None:
    await our_node(frontend, "lacks")
    before = (await frontend.admin.get("/api/ops")).json()["operations"]
    reply = await frontend.admin.post("/api/backends/upgrade/versioned")
    assert (reply.status_code, "no node has versioned" in reply.json()["error"]["message"]) == (404, True)
    assert (await frontend.admin.get("/api/ops")).json()["operations"] == before


async def test_a099_upgrading_all_leaves_nothing_to_upgrade(frontend: LiveFrontend) -> None:
    node = await our_node(frontend, "one", OLD)
    accepted = (await frontend.admin.post("/api/ops/upgrades", json={})).json()["operations"]
    assert [one["operation"]["backend"] for one in accepted] == ["versioned"]
    report = {"boot_id": "boot-1", "sequence": 2, "installed": [{**OLD, "version": "2.0"}]}
    await frontend.heartbeat(node["id"], report=report)
    assert (await frontend.admin.get("/api/backends/upgrades")).json() == {}
    assert (await frontend.admin.post("/api/ops/upgrades", json={})).json() == {"operations": []}


async def test_a_roll_out_says_who_cannot_go_back(frontend: LiveFrontend) -> None:
    listing = {"name": "versioned", "is_system": False, "is_meta": False, "version": "1.0"}
    async with localai_worker(frontend, "theirs", listing) as worker:
        await until_listed(frontend, worker.id)
        body = {"kind": "upgrade", "backend": "versioned", "roll_out": {"policy": "rolling"}, "dry_run": True}
        plan = (await frontend.admin.post("/api/ops", json=body)).json()
    assert "theirs cannot roll back" in plan["warnings"][0]


async def test_older_addresses_do_the_same(frontend: LiveFrontend) -> None:
    await our_node(frontend, "one", OLD)
    names = {one["name"] for one in (await frontend.admin.get("/backends/available")).json()}
    assert {"llama-cpp", "versioned"} <= names
    assert (await frontend.admin.get("/backends/upgrades")).json().keys() == {"versioned"}
    applied = (await frontend.admin.post("/backends/apply", json={"id": "llama-cpp"})).json()
    assert applied == {"id": applied["id"], "status_url": f"/backends/jobs/{applied['id']}"}
    assert (await frontend.admin.get(applied["status_url"])).json()["gallery_element_name"] == "llama-cpp"
    assert (await frontend.admin.post("/backends/upgrade/versioned")).status_code == 200
    assert (await frontend.admin.post("/backends/delete/versioned")).status_code == 200
    assert (await frontend.admin.get("/backends/jobs/unknown")).status_code == 404
