"""A worker's own HTTP server, over real connections."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from remuda.host.ports import listen
from remuda.worker.http.app import probes
from remuda.worker.http.server import serve
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio

NOT_READY = "not ready: NATS connection is down: worker cannot receive work (no answer from nats://bus:4222)"


@asynccontextmanager
async def served(why_unready: Callable[[], str]) -> AsyncIterator[httpx.AsyncClient]:
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, probes(why_unready), listening)
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=PLAIN) as client:
            yield client
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_ready_worker_says_ok(path: str) -> None:
    async with served(lambda: "") as client:
        answer, head = await client.get(path), await client.head(path)
    assert (answer.status_code, answer.text, answer.headers["x-remuda-role"]) == (200, "ok", "worker")
    assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "2")


async def test_a_worker_that_cannot_receive_work_is_alive_but_not_ready() -> None:
    async with served(lambda: "no answer from nats://bus:4222") as client:
        health, readiness = await client.get("/healthz"), await client.get("/readyz")
    assert health.status_code == 200
    assert (readiness.status_code, readiness.text) == (503, NOT_READY)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_probes_answer_no_other_method(method: str) -> None:
    async with served(lambda: "") as client:
        answers = [await client.request(method, path) for path in ("/healthz", "/readyz")]
    assert [answer.status_code for answer in answers] == [405, 405]


@pytest.mark.parametrize("path", ["/", "/healthz/", "/v1/files/x", "/metrics", "/v1/backend-logs"])
async def test_nothing_else_is_open(path: str) -> None:
    async with served(lambda: "") as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["x-remuda-code"]) == (404, "not_found")


async def test_the_port_is_free_again_once_it_has_ended() -> None:
    async with served(lambda: "") as client:
        port = client.base_url.port
        await client.get("/healthz")
    assert port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
