"""`DELETE /api/nodes/{id}`: the node is gone, its worker is told and shut out, its history stays."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.bus.auth import AuthSource, UserJwt, fixed
from remuda.bus.messages import Incoming
from remuda.core import limits
from remuda.core.ids import NodeId
from remuda.host.folder import DataFolder
from remuda.host.ports import free_port
from remuda.wire import subjects
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.nats_servers import connected, connecting, until_down, until_shut_out
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def login(answered: Json) -> AuthSource:
    return fixed(UserJwt(answered["nats_jwt"], SecretStr(answered["nats_user_seed"])))


def rows(frontend: LiveFrontend, table: str, node_id: str) -> int:
    with closing(sqlite3.connect(DataFolder(frontend.data_dir).database)) as database:
        query = f"SELECT count(*) FROM {table} WHERE node_id = ?"
        found: int = database.execute(query, [node_id]).fetchone()[0]
        return found


async def remove(frontend: LiveFrontend, node_id: str) -> None:
    reply = await frontend.admin.delete(f"/api/nodes/{node_id}")
    assert (reply.status_code, reply.json()) == (200, {"message": "node deregistered"})


async def test_a_removed_node_is_nowhere_but_in_the_history(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await remove(frontend, node["id"])
    assert (await frontend.admin.get(f"/api/nodes/{node['id']}")).status_code == 404
    assert node["name"] not in [listed["name"] for listed in (await frontend.admin.get("/api/nodes")).json()]
    entries = (await frontend.admin.get("/api/history", params={"node": node["name"]})).json()
    assert [entry["event"] for entry in entries] == ["removed", "registered"]
    assert {(entry["node_id"], entry["node_name"]) for entry in entries} == {("", node["name"])}


async def test_what_hung_on_a_removed_node_goes_with_it(
    frontend: LiveFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIAL_FIRST_GRACE_S", 0.0)
    nobody_there = f"127.0.0.1:{free_port('127.0.0.1')}"
    node = await frontend.register(http_address=nobody_there, labels={"a": "b"})

    async def dialled() -> bool:
        reasons = (await frontend.node(node["id"]))["remuda"]["reasons"]
        return any(f"{nobody_there} cannot be reached" in reason for reason in reasons)

    await wait_until(dialled, what="a dial")
    assert all(rows(frontend, table, node["id"]) for table in ("node_labels", "node_dials", "history"))
    await remove(frontend, node["id"])
    assert [rows(frontend, table, node["id"]) for table in ("node_labels", "node_dials", "history")] == [
        0,
        0,
        0,
    ]


async def test_the_worker_is_told_to_stop_and_its_credentials_end(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    told: list[bytes] = []

    async def hear(message: Incoming) -> None:
        told.append(message.payload)

    async with connected(node["nats_url"], login(node)) as bus:
        await bus.subscribe(subjects.node_stop(NodeId(node["id"])), hear)
        await remove(frontend, node["id"])
        await until_shut_out(bus)
    assert told == [b"null"]
    async with connecting(node["nats_url"], login(node)) as bus:
        assert "does not accept our credentials" in await until_down(bus)


async def test_credentials_of_other_nodes_go_on_working(frontend: LiveFrontend) -> None:
    removed, kept = await frontend.register(), await frontend.register()
    async with connected(removed["nats_url"], login(removed)) as out:
        await remove(frontend, removed["id"])
        await until_down(out)
    async with connected(kept["nats_url"], login(kept)):
        assert await frontend.status(kept["id"]) == "healthy"


async def test_a_removed_node_that_comes_back_is_a_new_one(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await remove(frontend, node["id"])
    back = await frontend.register(node["name"])
    assert back["id"] != node["id"]
    async with connected(back["nats_url"], login(back)):
        assert await frontend.status(back["id"]) == "healthy"


async def test_calls_of_a_removed_node_are_told_why_they_fail(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await remove(frontend, node["id"])
    for call in ("heartbeat", "drain", "deregister"):
        refused = await frontend.worker.post(f"/api/node/{node['id']}/{call}", json={})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (404, "node_removed")
    unknown = await frontend.worker.post("/api/node/never-seen/heartbeat", json={})
    assert (unknown.status_code, unknown.json()["error"]["reason"]) == (404, "not_found")


async def test_a_removed_node_needs_approval_again(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register()
    await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    await remove(strict_frontend, node["id"])
    assert (await strict_frontend.register(node["name"]))["status"] == "pending"


async def test_credentials_stay_shut_out_after_a_restart(tmp_path: Path) -> None:
    async with live_frontend(tmp_path) as before:
        node = await before.register()
        await remove(before, node["id"])
    async with live_frontend(tmp_path) as after:
        url = (await after.register())["nats_url"]
        async with connecting(url, login(node)) as bus:
            assert "does not accept our credentials" in await until_down(bus)
