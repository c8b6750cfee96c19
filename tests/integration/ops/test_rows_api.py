"""Rows of the behaviour page that only a whole frontend can show."""

from pathlib import Path

import anyio
import pytest

from tests.integration.api.ops_frontends import (
    listed,
    localai_worker,
    operation,
    ops_frontend,
    our_node,
    submit,
    until_status,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

QUESTIONS = {"backend.list", "models.running"}  # Frontends ask them by themselves, whatever happens.


async def test_a010_a018_an_operation_whose_reply_is_overdue_stays_listed_as_running_on_its_worker(
    tmp_path: Path,
) -> None:
    async with (
        ops_frontend(tmp_path, nats_backend_install_timeout="1s") as frontend,
        localai_worker(frontend, "slow", install_s=4.0),
    ):
        op = (await submit(frontend, backend="llama-cpp", nodes=["slow"]))["operation"]["id"]

        async def overdue() -> bool:
            item = await listed(frontend, op)
            return item is not None and item["nodes"][0]["status"] == "running_on_worker"

        await wait_until(overdue)
        job = (await frontend.admin.get(f"/api/backends/job/{op}")).json()
        assert (job["processed"], job.get("error", "")) == (False, "")
        done = await until_status(frontend, op, "succeeded")
        assert done["steps"][0]["attempt"] == 1


async def test_a102_no_admin_can_force_an_install_on_a_worker(tmp_path: Path) -> None:
    async with ops_frontend(tmp_path) as frontend, localai_worker(frontend, "plain") as worker:
        body = {"id": "llama-cpp", "force": True}
        op = (await frontend.admin.post("/backends/apply", json=body)).json()["id"]
        await until_status(frontend, op, "succeeded")
        [sent] = worker.heard("backend.install")
        assert "force" not in sent


async def test_a077_a079_adding_a_model_installs_nothing_and_tells_no_worker(tmp_path: Path) -> None:
    async with ops_frontend(tmp_path) as frontend, localai_worker(frontend, "plain") as worker:
        config = {"config": "name: qwen\nbackend: llama-cpp\nparameters: {model: qwen.gguf}\n"}
        assert (await frontend.admin.post("/api/models", json=config)).status_code == 201
        # What is asked for after it has come and gone: by then a worker would have heard of the model.
        op = (await submit(frontend, backend="versioned", nodes=["plain"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
        ops = (await frontend.admin.get("/api/ops")).json()["operations"]
        assert [one["id"] for one in ops] == [op]
        assert {verb for verb, _ in worker.received} - QUESTIONS == {"backend.install"}
        assert [sent["backend"] for sent in worker.heard("backend.install")] == ["versioned"]


async def test_a078_removing_a_model_leaves_files_alone_and_is_answered_without_its_nodes(
    tmp_path: Path,
) -> None:
    async with ops_frontend(tmp_path) as frontend, localai_worker(frontend, "plain") as worker:
        config = {"config": "name: qwen\nbackend: llama-cpp\nparameters: {model: qwen.gguf}\n"}
        assert (await frontend.admin.post("/api/models", json=config)).status_code == 201
        removed = await frontend.admin.delete("/api/models/qwen")
        assert (removed.status_code, removed.json()["message"]) == (200, "model removed")
        assert (await frontend.admin.get("/api/models/qwen")).status_code == 404
        op = (await submit(frontend, backend="versioned", nodes=["plain"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
        assert worker.heard("model.delete") == []


async def test_d1_07_d1_20_no_admin_waits_for_a_node_and_whoever_leaves_ends_nothing(tmp_path: Path) -> None:
    async with ops_frontend(tmp_path) as frontend, localai_worker(frontend, "slow") as worker:
        worker.may_finish = anyio.Event()
        url = f"/api/nodes/{worker.id}/backends/install"
        reply = await frontend.admin.post(url, json={"backend": "llama-cpp"})
        assert reply.status_code == 202
        op = reply.json()["jobID"]
        assert (await operation(frontend, op))["status"] in ("queued", "running")
        worker.may_finish.set()
        await until_status(frontend, op, "succeeded")


async def test_d1_22_after_a_restart_an_operation_can_still_be_cancelled(tmp_path: Path) -> None:
    async with ops_frontend(tmp_path) as before:
        node = await our_node(before, "asleep")
        await before.admin.post(f"/api/nodes/{node['id']}/drain")
        op = (await submit(before, backend="llama-cpp", nodes=["asleep"]))["operation"]["id"]
    async with ops_frontend(tmp_path) as after:
        item = await listed(after, op)
        assert item is not None
        assert item["cancellable"] is True
        assert (await after.admin.post(f"/api/operations/{op}/cancel")).json()["success"] is True
        await until_status(after, op, "cancelled")
