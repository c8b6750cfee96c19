"""Operations over HTTP: asked for, looked at, steered; by the contract's addresses and by our own."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from remuda.core.clock import SystemClock
from remuda.ops.model import Kind, State
from remuda.store.database import open_database
from remuda.store.ops import SqlOpStore
from tests.integration.api.ops_frontends import (
    Stream,
    listed,
    localai_worker,
    now_there,
    operation,
    ops_frontend,
    our_node,
    submit,
    until_status,
)
from tests.support.frontends import Json, LiveFrontend
from tests.support.op_builders import an_operation, end, submitted
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with ops_frontend(tmp_path_factory.mktemp("ops")) as live:
        yield live


async def drained(frontend: LiveFrontend, name: str) -> Json:
    """A node on which nothing happens: it is draining."""
    node = await our_node(frontend, name)
    assert (await frontend.admin.post(f"/api/nodes/{node['id']}/drain")).status_code == 200
    return node


async def waiting_op(frontend: LiveFrontend, name: str, **more: Any) -> str:
    """An operation that waits for its node."""
    await drained(frontend, name)
    return str((await submit(frontend, backend="llama-cpp", nodes=[name], **more))["operation"]["id"])


async def past_loads(frontend: LiveFrontend, count: int) -> None:
    """Loads of a model that failed, as another frontend on this database would have left them."""
    database = await open_database(f"sqlite:///{frontend.data_dir / 'remuda.db'}", clock=SystemClock())
    store = SqlOpStore(database)
    try:
        for number in range(count):
            await submitted(store, an_operation(f"load-{number}", Kind.LOAD, backend=f"b{number}"), ["gone"])
            await end(store, f"load-{number}", State.FAILED)
    finally:
        await database.close()


def error(reply: httpx.Response) -> str:
    found = reply.json()["error"]
    return str(found["message"] if isinstance(found, dict) else found)


# One operation's life.


async def test_an_install_is_recorded_answered_at_once_done_and_remembered(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "life") as worker:
        accepted = await submit(frontend, backend="llama-cpp", nodes=["life"])
        op = accepted["operation"]["id"]
        done = await until_status(frontend, op, "succeeded")
        assert (done["percentage"], done["counts"]) == (100, {"succeeded": 1})
        [sent] = worker.heard("backend.install")
        assert await listed(frontend, op) is None
    past = (await frontend.admin.get("/api/operations/history")).json()["operations"]
    item = next(one for one in past if one["jobID"] == op)
    assert (item["outcome"], item["taskType"], item["name"]) == ("completed", "installation", "llama-cpp")
    assert sent["op_id"] == op


async def test_a074_an_admins_install_names_no_model_and_the_first_replica(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "plain") as worker:
        op = (await submit(frontend, backend="llama-cpp", nodes=["plain"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
        [sent] = worker.heard("backend.install")
    assert sent["backend"] == "llama-cpp"
    assert sent.keys().isdisjoint({"model_id", "replica_index", "force"})
    assert '"mine"' in sent["backend_galleries"]
    assert "builtin:" not in sent["backend_galleries"]


async def test_operations_are_counted_by_kind_and_outcome(frontend: LiveFrontend) -> None:
    async def count(name: str, **labels: str) -> float:
        text = (await frontend.admin.get("/metrics")).text
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples)
        return sum(one.value for one in samples if one.name == name and one.labels == labels)

    names = ("remuda_operations_submitted_total", "remuda_operation_attempts_total")
    ended = {"kind": "install", "outcome": "succeeded"}
    before = [await count(name, kind="install") for name in names]
    succeeded = await count("remuda_operation_steps_ended_total", **ended)
    async with localai_worker(frontend, "counted", install_s=60) as worker:
        op = (await submit(frontend, backend="llama-cpp", nodes=["counted"]))["operation"]["id"]
        await submit(frontend, backend="llama-cpp", nodes=["counted"])  # The same again is no other.
        await wait_until(lambda: worker.heard("backend.install"))
        assert await count("remuda_operations_live", kind="install") >= 1
        await frontend.admin.post(f"/api/ops/{op}/cancel")
    async with localai_worker(frontend, "counted-2"):
        op = (await submit(frontend, backend="llama-cpp", nodes=["counted-2"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
    assert [await count(name, kind="install") for name in names] == [one + 2 for one in before]
    assert await count("remuda_operation_steps_ended_total", **ended) == succeeded + 1


async def test_a056_polling_shows_bytes_while_a_worker_installs(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "slow", install_s=60):
        op = (await submit(frontend, backend="llama-cpp", nodes=["slow"]))["operation"]["id"]

        async def shows_progress() -> bool:
            item = await listed(frontend, op)
            return item is not None and item["nodes"][0].get("total") == "1.0 MiB"

        await wait_until(shows_progress)
        item = await listed(frontend, op)
        assert item is not None
        assert (item["taskType"], item["isBackend"], item["cancellable"]) == ("Installation", True, True)
        assert item["nodes"][0]["status"] == "downloading"
        assert (await frontend.admin.post(f"/api/operations/{op}/cancel")).json()["success"] is True


async def test_a063_a_node_that_is_away_is_queued_with_the_reason_and_is_done_later(
    frontend: LiveFrontend,
) -> None:
    async with localai_worker(frontend, "away") as worker:
        await frontend.admin.post(f"/api/nodes/{worker.id}/drain")
        op = (await submit(frontend, backend="llama-cpp", nodes=["away"]))["operation"]["id"]

        async def says_why() -> bool:
            item = await listed(frontend, op)
            return item is not None and "draining" in item["nodes"][0].get("error", "")

        await wait_until(says_why)
        item = await listed(frontend, op)
        assert item is not None
        assert (item["isQueued"], item["nodes"][0]["status"]) == (True, "queued")
        assert worker.heard("backend.install") == []
        await frontend.admin.post(f"/api/nodes/{worker.id}/resume")
        await until_status(frontend, op, "succeeded")


async def test_a163_a_node_that_cannot_run_it_is_skipped_and_hears_nothing(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "cpu-only") as worker:
        await frontend.register("gpu", capability="nvidia")
        accepted = await submit(frontend, backend="vllm", nodes=["cpu-only", "gpu"])
        steps = {step["node_name"]: step for step in accepted["operation"]["steps"]}
        assert steps["cpu-only"]["state"] == "skipped"
        assert "no build for this machine" in steps["cpu-only"]["reason"]
        item = await listed(frontend, accepted["operation"]["id"])
        assert item is not None
        assert item["nodes"][0]["error"].startswith("skipped: ")
        assert worker.heard("backend.install") == []


async def test_a049_a_change_of_the_whole_keeps_every_node(frontend: LiveFrontend) -> None:
    for name in ("kept-1", "kept-2"):
        await drained(frontend, name)
    op = (await submit(frontend, backend="llama-cpp", nodes=["kept-1", "kept-2"]))["operation"]["id"]
    await frontend.admin.post(f"/api/ops/{op}/pause")
    item = await listed(frontend, op)
    assert item is not None
    assert [node["node_name"] for node in item["nodes"]] == ["kept-1", "kept-2"]


async def test_a050_a_whole_operation_in_a_stream_replaces_what_was_known(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "whole")
    shown = (await now_there(frontend.admin, f"/api/ops/{op}/events")).ops()[0]
    assert (shown["whole"], [step["node_name"] for step in shown["steps"]]) == (True, ["whole"])


# Looking.


async def test_what_would_be_done_can_be_asked_without_doing_it(frontend: LiveFrontend) -> None:
    await our_node(frontend, "dry")
    body = {"kind": "install", "backend": "llama-cpp", "nodes": ["dry"], "dry_run": True}
    reply = await frontend.admin.post("/api/ops", json=body)
    assert (reply.status_code, reply.json()["steps"][0]["names"][0]) == (200, "cpu-llama-cpp")
    shown = (await frontend.admin.get("/api/ops?node=dry")).json()
    assert shown["operations"] == []


async def test_operations_are_listed_by_state_backend_and_node(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "filters")

    async def found(**which: str) -> bool:
        reply = await frontend.admin.get("/api/ops", params={"node": "filters", **which})
        return any(one["id"] == op for one in reply.json()["operations"])

    matching: list[dict[str, str]] = [
        {},
        {"state": "live"},
        {"backend": "llama-cpp"},
        {"kind": "install"},
        {"id": op[:8]},
    ]
    others: list[dict[str, str]] = [
        {"state": "finished"},
        {"state": "failed"},
        {"backend": "other"},
        {"kind": "load"},
        {"model": "qwen"},
        {"id": "%"},
        {"before": "1"},
    ]
    assert [await found(**which) for which in matching] == [True] * 5
    assert [await found(**which) for which in others] == [False] * 7


async def test_pages_of_operations_hold_each_once_and_the_last_says_so(frontend: LiveFrontend) -> None:
    node = await drained(frontend, "pages")
    asked = [
        (await submit(frontend, uri=f"https://example.invalid/{name}.tar.gz", name=name, nodes=["pages"]))
        for name in ("first", "second", "third", "fourth", "fifth")
    ]
    pages: list[list[str]] = []
    query: dict[str, str | int] = {"node": "pages", "limit": 2}
    while True:
        page = (await frontend.admin.get("/api/ops", params=query)).json()
        pages.append([one["id"] for one in page["operations"]])
        if "next" not in page:
            break
        query["before"] = page["next"]
    ids = [one["operation"]["id"] for one in reversed(asked)]
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    await frontend.admin.delete(f"/api/nodes/{node['id']}")


async def test_history_of_backends_holds_what_was_before_any_number_of_loads(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "busy"):
        op = (await submit(frontend, backend="llama-cpp", nodes=["busy"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
    await past_loads(frontend, 60)
    past = (await frontend.admin.get("/api/operations/history")).json()["operations"]
    assert op in [one["jobID"] for one in past]
    assert all(one["taskType"] != "load" for one in past)


async def test_an_operation_shows_its_steps_and_their_attempts(frontend: LiveFrontend) -> None:
    async with localai_worker(frontend, "attempts"):
        op = (await submit(frontend, backend="llama-cpp", nodes=["attempts"]))["operation"]["id"]
        [step] = (await until_status(frontend, op, "succeeded"))["steps"]
    assert [attempt["number"] for attempt in step["attempts"]] == [1]
    assert step["attempts"][0].keys() >= {"begun_at", "ended_at", "stage"}
    assert step["pinned"] is False


# Steering.


async def test_an_operation_can_be_paused_resumed_and_cancelled(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "steered")
    paused = (await frontend.admin.post(f"/api/ops/{op}/pause")).json()
    assert paused["wish"] == "pause"
    await until_status(frontend, op, "paused")
    assert (await frontend.admin.post(f"/api/ops/{op}/resume")).json()["wish"] == "run"
    assert (await frontend.admin.post(f"/api/ops/{op}/cancel")).status_code == 200
    assert (await until_status(frontend, op, "cancelled"))["counts"] == {"cancelled": 1}
    assert (await frontend.admin.post(f"/api/ops/{op}/cancel")).status_code == 409


async def test_a_cancelled_operation_is_cancelled_once_by_the_contract(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "once")
    first = await frontend.admin.post(f"/api/operations/{op}/cancel")
    assert (first.status_code, first.json()) == (200, {"success": True, "message": "Operation cancelled"})
    await until_status(frontend, op, "cancelled")
    again = await frontend.admin.post(f"/api/operations/{op}/cancel")
    assert (again.status_code, again.json().keys()) == (400, {"error", "reason"})
    assert again.json()["reason"] == "conflict"


@pytest.mark.parametrize("verb", ["cancel", "pause", "dismiss"])
async def test_an_unknown_operation_is_no_error_by_the_contract(frontend: LiveFrontend, verb: str) -> None:
    reply = await frontend.admin.post(f"/api/operations/6f0c9a52-7f5b-11f0-9a3e-0242ac120002/{verb}")
    assert (reply.status_code, reply.json()["success"]) == (200, True)


async def test_a164_what_ended_badly_can_be_retried_for_one_node(frontend: LiveFrontend) -> None:
    for name in ("again-1", "again-2"):
        await drained(frontend, name)
    op = (await submit(frontend, backend="llama-cpp", nodes=["again-1", "again-2"]))["operation"]["id"]
    await frontend.admin.post(f"/api/ops/{op}/cancel")
    await until_status(frontend, op, "cancelled")
    reply = await frontend.admin.post(f"/api/ops/{op}/retry", json={"nodes": ["again-2"]})
    assert {step["node_name"]: step["state"] for step in reply.json()["steps"]} == {
        "again-1": "cancelled",
        "again-2": "pending",
    }
    stranger = await frontend.admin.post(f"/api/ops/{op}/retry", json={"nodes": ["stranger"]})
    assert (stranger.status_code, "stranger" in error(stranger)) == (400, True)
    nothing = await frontend.admin.post(f"/api/ops/{op}/retry", json={"nodes": ["again-2"]})
    assert nothing.status_code == 409


async def test_the_same_wish_is_joined_and_a_key_used_for_something_else_is_refused(
    frontend: LiveFrontend,
) -> None:
    await drained(frontend, "key")
    body: Json = {"backend": "llama-cpp", "nodes": ["key"], "idempotency_key": "click-1"}
    first, second = await submit(frontend, **body), await submit(frontend, **body)
    assert (first["joined"], second["joined"]) == (False, True)
    assert first["operation"]["id"] == second["operation"]["id"]
    other = await frontend.admin.post("/api/ops", json={"kind": "remove", **body})
    assert (other.status_code, "click-1" in error(other)) == (409, True)


async def past(frontend: LiveFrontend) -> dict[str, Json]:
    reply = await frontend.admin.get("/api/operations/history")
    return {one["jobID"]: one for one in reply.json()["operations"]}


async def test_a_failed_operation_stays_listed_until_it_is_dismissed_and_then_in_the_history(
    frontend: LiveFrontend,
) -> None:
    await drained(frontend, "expiring")
    accepted = await submit(frontend, backend="llama-cpp", nodes=["expiring"], expires_s=0.05)
    op = accepted["operation"]["id"]
    assert "expired before it began" in (await until_status(frontend, op, "failed"))["error"]
    item = await listed(frontend, op)
    assert item is not None
    assert (item["error"].startswith("expiring: "), item["cancellable"]) == (True, False)
    assert (await frontend.admin.post(f"/api/operations/{op}/dismiss")).status_code == 200
    assert await listed(frontend, op) is None
    kept = (await past(frontend))[op]
    assert (kept["outcome"], "expired before it began" in kept["error"]) == ("failed", True)
    await frontend.admin.delete("/api/operations/history")
    assert op not in await past(frontend)
    assert (await operation(frontend, op))["cleared"], "its own page is still there"


async def test_clearing_the_history_hides_failed_operations_from_the_list_too(frontend: LiveFrontend) -> None:
    await drained(frontend, "expired")
    body = {"backend": "llama-cpp", "nodes": ["expired"], "expires_s": 0.05}
    op = (await submit(frontend, **body))["operation"]["id"]
    await until_status(frontend, op, "failed")
    await frontend.admin.delete("/api/operations/history")
    assert await listed(frontend, op) is None
    assert op not in await past(frontend)
    await frontend.admin.post(f"/api/ops/{op}/retry")
    assert await listed(frontend, op) is not None, "whoever asks for it again sees it again"


async def test_an_operation_under_way_is_not_dismissed(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "busy")
    assert (await frontend.admin.post(f"/api/ops/{op}/dismiss")).status_code == 409
    assert (await frontend.admin.post(f"/api/operations/{op}/dismiss")).status_code == 200
    assert await listed(frontend, op) is not None


async def test_history_can_be_cleared(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "cleared")
    await frontend.admin.post(f"/api/ops/{op}/cancel")
    await until_status(frontend, op, "cancelled")
    assert (await frontend.admin.delete("/api/operations/history")).json() == {"success": True}
    assert (await frontend.admin.get("/api/operations/history")).json() == {"operations": []}


async def test_operations_and_history_survive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("restart")
    async with ops_frontend(folder) as before:
        done, waiting = await waiting_op(before, "a"), await waiting_op(before, "b")
        await before.admin.post(f"/api/ops/{done}/cancel")
        await until_status(before, done, "cancelled")
        place = (await now_there(before.admin, "/api/ops/events")).place
    async with ops_frontend(folder) as after:
        past = (await after.admin.get("/api/operations/history")).json()["operations"]
        assert [one["jobID"] for one in past] == [done]
        assert await listed(after, waiting) is not None
        later = await now_there(after.admin, "/api/ops/events", place)
        assert all(event["event"] != "snapshot" for event in later.events)


async def test_an_operation_outlives_its_node_under_the_nodes_name(frontend: LiveFrontend) -> None:
    node = await drained(frontend, "removed")
    op = (await submit(frontend, backend="llama-cpp", nodes=["removed"]))["operation"]["id"]
    await frontend.admin.delete(f"/api/nodes/{node['id']}")
    shown = await until_status(frontend, op, "cancelled")
    assert (shown["steps"][0]["node_name"], "removed" in shown["steps"][0]["reason"]) == ("removed", True)


# Bad input.


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"backend": "lama-cpp"}, 404, "did you mean"),
        ({"backend": ""}, 400, "backend"),
        ({"backend": "llama-cpp", "nodes": ["nobody"]}, 404, "no node 'nobody'"),
        ({"backend": "llama-cpp", "selector": "room"}, 400, "'room' is not key=value"),
        ({"backend": "llama-cpp", "selector": "room=nowhere"}, 409, "no node has the labels"),
        ({"backend": "llama-cpp", "selector": "a=b", "nodes": ["x"]}, 400, "not both"),
        ({"uri": "file:///etc/passwd", "name": "x"}, 400, "own disk"),
        ({"uri": "/srv/x", "name": "x"}, 400, "--allow-local-sources"),
        ({"uri": "ocifile:///srv/x.tar", "name": "x"}, 400, "own disk"),
        ({"uri": "gopher://x/y", "name": "x"}, 400, "neither an image"),
        ({"backend": "llama-cpp", "galleries": "no list"}, 400, "galleries"),
        ({"backend": "llama-cpp", "galleries": '[{"name":"f","url":"file:///etc/passwd"}]'}, 400, "file"),
        ({"backend": "llama-cpp", "kind": "explode"}, 400, "kind"),
        ({"backend": "nul\0"}, 400, "printable"),
        ({"backend": "x" * 2000}, 400, "backend"),
        ({"backend": "llama-cpp", "roll_out": {"policy": "rolling"}}, 400, "only upgrades"),
        ({"backend": "llama-cpp", "expires_s": -1}, 400, "expires_s"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_words(
    frontend: LiveFrontend, body: Json, status: int, words: str
) -> None:
    await our_node(frontend, "some-node")
    reply = await frontend.admin.post("/api/ops", json={"kind": "install", **body})
    assert (reply.status_code, words in error(reply)) == (status, True), reply.text


@pytest.mark.parametrize("op", ["*", "a.b.*", ">", "%00", "x" * 500, "a%20b", "%2e%2e%2f"])
@pytest.mark.parametrize("verb", ["", "/cancel", "/retry", "/events"])
async def test_an_id_that_is_no_operations_is_not_found(frontend: LiveFrontend, op: str, verb: str) -> None:
    send = frontend.admin.post if verb in ("/cancel", "/retry") else frontend.admin.get
    assert (await send(f"/api/ops/{op}{verb}")).status_code in (404, 405)
    assert (await frontend.admin.post(f"/api/operations/{op}/cancel")).status_code in (200, 404)
    assert (await frontend.admin.get(f"/api/backends/job/{op}")).status_code in (200, 404)


async def test_an_operation_on_an_empty_fleet_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with ops_frontend(tmp_path_factory.mktemp("empty")) as empty:
        reply = await empty.admin.post("/api/ops", json={"kind": "install", "backend": "llama-cpp"})
        assert (reply.status_code, "no nodes yet" in error(reply)) == (409, True)


async def test_many_operations_at_once_are_all_there(frontend: LiveFrontend) -> None:
    node = await drained(frontend, "crowd")
    asked: list[str] = []

    async def ask(number: int) -> None:
        uri = f"https://example.invalid/b{number}.tar.gz"
        accepted = await submit(frontend, uri=uri, name=f"b{number}", nodes=["crowd"])
        asked.append(accepted["operation"]["id"])

    with anyio.fail_after(120):
        async with anyio.create_task_group() as askers:
            for number in range(100):
                askers.start_soon(ask, number)
    reply = await frontend.admin.get("/api/ops", params={"node": "crowd", "limit": 1000})
    assert {one["id"] for one in reply.json()["operations"]} == set(asked)
    assert len(set(asked)) == 100
    await frontend.admin.delete(f"/api/nodes/{node['id']}")


# Events.


async def test_a_stream_begins_with_all_there_is_and_goes_on_with_each_change(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "watched")
    stream = Stream()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.follow, frontend.admin, "/api/ops/events")

        async def ready() -> bool:
            return any(event["event"] == "ready" for event in stream.events)

        await wait_until(ready)
        assert stream.events[0]["event"] == "snapshot"
        assert op in {shown["id"] for shown in stream.ops()}
        await frontend.admin.post(f"/api/ops/{op}/cancel")

        async def told() -> bool:
            return any(shown["id"] == op and shown["status"] == "cancelled" for shown in stream.ops())

        await wait_until(told)
        tasks.cancel_scope.cancel()


async def test_a_reader_that_comes_back_misses_nothing(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "missed")
    place = (await now_there(frontend.admin, "/api/ops/events")).place
    await frontend.admin.post(f"/api/ops/{op}/cancel")
    await until_status(frontend, op, "cancelled")
    later = await now_there(frontend.admin, "/api/ops/events", place)
    assert [shown["status"] for shown in later.ops() if shown["id"] == op][-1] == "cancelled"
    assert all(event["event"] != "snapshot" for event in later.events)
    assert (await now_there(frontend.admin, "/api/ops/events", later.place)).ops() == []


@pytest.mark.parametrize("place", ["999999999", "what", "-1"])
async def test_a_place_nobody_knows_means_a_snapshot(frontend: LiveFrontend, place: str) -> None:
    kinds = [event["event"] for event in (await now_there(frontend.admin, "/api/ops/events", place)).events]
    assert (kinds[0], kinds.count("ready")) == ("snapshot", 1)
    assert set(kinds[kinds.index("ready") + 1 :]) <= {"progress"}  # Of what is under way.


async def test_one_operation_can_be_followed(frontend: LiveFrontend) -> None:
    op = await waiting_op(frontend, "followed")
    await waiting_op(frontend, "other")
    stream = await now_there(frontend.admin, f"/api/ops/{op}/events")
    assert {shown["id"] for shown in stream.ops()} == {op}  # Once, or again if it has changed meanwhile.


async def test_a_head_request_for_events_ends(frontend: LiveFrontend) -> None:
    assert (await frontend.admin.head("/api/ops/events")).status_code == 200


async def test_a_frontend_stops_at_once_although_somebody_reads(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = Stream()
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            async with ops_frontend(tmp_path_factory.mktemp("stopping")) as live:
                client = httpx.AsyncClient(base_url=live.url, trust_env=False, timeout=60, verify=PLAIN)
                tasks.start_soon(stream.follow, client, "/api/ops/events")

                async def ready() -> bool:
                    return bool(stream.events)

                await wait_until(ready)
                began = anyio.current_time()
        assert anyio.current_time() - began < 8
    await client.aclose()


# Who may.


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/operations"),
        ("GET", "/api/operations/history"),
        ("DELETE", "/api/operations/history"),
        ("POST", "/api/operations/x/cancel"),
        ("GET", "/api/ops"),
        ("POST", "/api/ops"),
        ("GET", "/api/ops/x"),
        ("POST", "/api/ops/x/retry"),
        ("GET", "/api/ops/events"),
        ("GET", "/api/backends"),
        ("POST", "/api/backends/install/x"),
        ("POST", "/backends/apply"),
        ("GET", "/api/nodes/x/backends"),
        ("POST", "/api/nodes/x/backends/delete"),
    ],
)
async def test_operations_are_an_admins(open_frontend: LiveFrontend, method: str, path: str) -> None:
    assert (await open_frontend.anyone.request(method, path)).status_code == 401


async def test_who_asked_is_remembered(open_frontend: LiveFrontend) -> None:
    await our_node(open_frontend, "who")
    body = {"kind": "install", "backend": "echo", "nodes": ["who"]}
    reply = await open_frontend.admin.post("/api/ops", json=body)
    assert (await operation(open_frontend, reply.json()["operation"]["id"]))["asked_by"] == "first-admin"
