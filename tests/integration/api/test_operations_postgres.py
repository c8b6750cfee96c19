"""Operations on PostgreSQL: the same answers, and texts it cannot hold are refused before it is asked."""

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.integration.api.ops_frontends import (
    listed,
    localai_worker,
    now_there,
    ops_frontend,
    our_node,
    submit,
    until_status,
)
from tests.support.frontends import LiveFrontend
from tests.support.postgres import postgres_server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    with postgres_server() as postgres:
        url = postgres.new_database()
        async with ops_frontend(tmp_path_factory.mktemp("postgres"), database_url=url) as live:
            yield live


async def test_an_operation_is_done_followed_and_remembered(frontend: LiveFrontend) -> None:
    place = (await now_there(frontend.admin, "/api/ops/events")).place
    async with localai_worker(frontend, "one"):
        op = (await submit(frontend, backend="llama-cpp", nodes=["one"]))["operation"]["id"]
        await until_status(frontend, op, "succeeded")
    told = await now_there(frontend.admin, "/api/ops/events", place)
    assert [shown["status"] for shown in told.ops() if shown["id"] == op][-1] == "succeeded"
    past = (await frontend.admin.get("/api/operations/history")).json()["operations"]
    assert op in {one["jobID"] for one in past}
    assert await listed(frontend, op) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/ops/%00"),
        ("POST", "/api/ops/%00/cancel"),
        ("POST", "/api/operations/%00/dismiss"),
        ("GET", "/api/ops?node=%00"),
        ("GET", "/api/ops?backend=%00"),
        ("GET", "/api/ops/%ED%A0%80"),
        ("POST", "/api/backends/install/%00"),
        ("POST", "/api/backends/install/%2500"),
        ("GET", "/api/backends/job/%00"),
        ("GET", "/api/nodes/%00/backends"),
    ],
)
async def test_a_nul_is_refused(frontend: LiveFrontend, method: str, path: str) -> None:
    reply = await frontend.admin.request(method, path)
    assert reply.status_code in (400, 404), reply.text


@pytest.mark.parametrize("many", [20, pytest.param(50, marks=pytest.mark.long)])
async def test_a048_many_at_once_leave_one_entry_per_node(frontend: LiveFrontend, many: int) -> None:
    names = [f"n{many}-{number:02}" for number in range(many * 2 // 5)]
    for name in names:
        node = await our_node(frontend, name)
        await frontend.admin.post(f"/api/nodes/{node['id']}/drain")
    op = (await submit(frontend, backend="llama-cpp", nodes=names))["operation"]["id"]

    async def meddle(number: int) -> None:
        await frontend.admin.post(f"/api/ops/{op}/{'pause' if number % 2 else 'resume'}")

    async with anyio.create_task_group() as tasks:
        for number in range(many):
            tasks.start_soon(meddle, number)
    item = await listed(frontend, op)
    assert item is not None
    assert [node["node_name"] for node in item["nodes"]] == names
