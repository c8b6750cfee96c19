"""Operations asked for by the hundred: every caller gets an answer, and nothing that was taken is lost."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from remuda.core import limits
from tests.integration.api.ops_frontends import ops_frontend, our_node
from tests.support.frontends import LiveFrontend
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server

pytestmark = pytest.mark.anyio

NODES = 5
PATIENCE_S = 120.0


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The setting that chooses it."""
    if request.param == "sqlite":
        yield {}
        return
    with postgres_server() as postgres:
        yield {"database_url": postgres.new_database()}


@pytest.fixture
async def frontend(database: dict[str, str], tmp_path: Path) -> AsyncIterator[LiveFrontend]:
    async with ops_frontend(tmp_path, **database) as live:
        for number in range(NODES):
            node = await our_node(live, f"n{number}")
            await live.admin.post(f"/api/nodes/{node['id']}/drain")
        yield live


class Flood:
    """Callers who share what is left to ask for; who is told to come back later, does."""

    def __init__(self, frontend: LiveFrontend, operations: int, connections: int) -> None:
        self.taken: list[str] = []
        self.refused: list[httpx.Response] = []
        self._frontend = frontend
        self._connections = connections
        self._left: Iterator[int] = iter(range(operations))

    async def run(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._frontend.url,
            headers=self._frontend.admin.headers,
            timeout=PATIENCE_S,
            limits=httpx.Limits(max_connections=self._connections),
            trust_env=False,
            verify=PLAIN,
        ) as client:
            with anyio.fail_after(PATIENCE_S):
                async with anyio.create_task_group() as callers:
                    for _ in range(self._connections):
                        callers.start_soon(self._ask, client)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        for number in self._left:
            body = {
                "kind": "install",
                "uri": f"https://example.invalid/b{number}.tar.gz",
                "name": f"b{number}",
                "nodes": [f"n{number % NODES}"],
            }
            while (reply := await client.post("/api/ops", json=body)).status_code != 202:
                assert (reply.status_code, "Retry-After" in reply.headers) == (503, True), reply.text
                self.refused.append(reply)
            self.taken.append(reply.json()["operation"]["id"])


async def there(frontend: LiveFrontend) -> set[str]:
    reply = await frontend.admin.get("/api/ops", params={"limit": 1000})
    return {one["id"] for one in reply.json()["operations"]}


@pytest.mark.parametrize("count", [80, pytest.param(1000, marks=pytest.mark.long)])
async def test_operations_at_once_are_all_taken(frontend: LiveFrontend, count: int) -> None:
    flood = Flood(frontend, operations=count, connections=64)
    await flood.run()
    assert len(set(flood.taken)) == count
    assert await there(frontend) == set(flood.taken)


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.long)])
async def test_beyond_the_bound_callers_are_told_when_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_WAITING_MAX", 10)
    async with ops_frontend(tmp_path) as frontend:
        for number in range(NODES):
            await our_node(frontend, f"n{number}")
        flood = Flood(frontend, operations=count, connections=30)
        await flood.run()
        assert len(set(flood.taken)) == count
        assert await there(frontend) == set(flood.taken)
    assert any("others wait for the same" in reply.json()["error"]["message"] for reply in flood.refused)
