"""PostgreSQL is stricter than SQLite about texts and numbers: what it cannot hold is refused before it is
asked, and spoils nothing else."""

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from remuda.cli import findings
from remuda.wire.admin import Unready
from remuda.wire.codec import decode
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
async def frontend(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LiveFrontend]:
    url = postgres.new_database()
    async with live_frontend(tmp_path_factory.mktemp("postgres"), database_url=url) as live:
        yield live


async def test_bad_heartbeats_do_not_spoil_those_written_with_them(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    answers: list[int] = []

    async def send(node_id: str, content: bytes) -> None:
        reply = await frontend.worker.post(f"/api/node/{node_id}/heartbeat", content=content)
        answers.append(reply.status_code)

    async with anyio.create_task_group() as senders:
        for _ in range(10):
            senders.start_soon(send, node["id"], b'{"available_ram": 7}')
            senders.start_soon(send, node["id"], b'{"gpu_vendor": "\\u0000"}')
            senders.start_soon(send, node["id"], b'{"report": {"boot_id": "\\u0000", "sequence": 1e30}}')
            senders.start_soon(send, "%00", b"{}")
    assert sorted(answers) == [200] * 30 + [404] * 10
    assert (await frontend.node(node["id"]))["available_ram"] == 7


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nodes/%00", 404),
        ("DELETE", "/api/nodes/%00", 404),
        ("POST", "/api/node/%00/drain", 404),
        ("DELETE", "/api/keys/%00", 404),
        ("DELETE", "/api/nodes/{id}/labels/%00", 400),
        ("GET", "/api/history?node=%00", 400),
        ("GET", "/api/nodes/%ED%A0%80", 404),
    ],
)
async def test_a_nul_in_the_path_is_refused(
    frontend: LiveFrontend, method: str, path: str, status: int
) -> None:
    node = await frontend.register()
    reply = await frontend.worker.request(method, path.format(id=node["id"]))
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, status)


async def test_the_largest_figures_are_stored(frontend: LiveFrontend) -> None:
    node = await frontend.register(
        total_ram=1 << 60, max_replicas_per_model=2**31 - 1, remuda={"boot_id": "boot-1"}
    )
    report = {"boot_id": "boot-1", "sequence": 2**63 - 1}
    await frontend.heartbeat(node["id"], available_disk=1 << 60, report=report)
    shown = await frontend.node(node["id"])
    assert (shown["total_ram"], shown["available_disk"]) == (1 << 60, 1 << 60)
    assert shown["max_replicas_per_model"] == 2**31 - 1


async def test_a_database_that_only_answers_questions_makes_the_frontend_unready(
    postgres: PostgresServer, frontend: LiveFrontend
) -> None:
    async def unready() -> Unready | None:
        reply = await frontend.worker.get("/readyz")
        return None if reply.status_code == 200 else decode(Unready, reply.content)

    with postgres.read_only():
        said = await wait_until(unready)
        assert said is not None
        assert "read-only" in said.reason
        [found] = findings.readiness(said)
        assert (found.check, found.level) == ("store", findings.Level.PROBLEM)

    async def ready() -> bool:
        return await unready() is None

    await wait_until(ready)
