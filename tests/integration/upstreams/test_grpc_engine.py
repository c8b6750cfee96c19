"""Loading models into backends, and asking how they are."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remuda.core.errors import BackendFailed, NodeUnreachable
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.scheduler.model import Place
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.http.client import Pool
from tests.integration.backends.programs import running
from tests.integration.upstreams.grpc_rig import PARROT, Client, chat, upstream_at
from tests.integration.upstreams.grpc_scripts import Open, scripted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine() -> AsyncIterator[GrpcEngine]:
    pool = Pool()
    yield GrpcEngine(pool)
    assert pool.busy == 0
    pool.close()


def _parrot(*options: str) -> ModelConfig:
    return PARROT.model_copy(update={"options": options})


async def test_a_loaded_model_answers(engine: GrpcEngine, tmp_path: Path) -> None:
    client = Client()

    with running(tmp_path) as process:
        await engine.load(ReplicaEndpoint(process.address), PARROT, Place())
        async with upstream_at(process.address) as upstream:
            await upstream.serve(chat("hi"), client)

    assert client.text == "hi"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("echo_load_fail:no such file", "polly could not be loaded: no such file"),
        ("echo_load_fail:INTERNAL", "loading polly failed: INTERNAL: failed to load, as told"),
    ],
)
async def test_a_load_fails_in_the_backends_words(
    engine: GrpcEngine, tmp_path: Path, option: str, message: str
) -> None:
    with running(tmp_path) as process, pytest.raises(BackendFailed) as failed:
        await engine.load(ReplicaEndpoint(process.address), _parrot(option), Place())

    assert failed.value.message == message


async def test_a_backend_that_dies_while_it_loads_has_failed(engine: GrpcEngine, tmp_path: Path) -> None:
    with (
        running(tmp_path) as process,
        pytest.raises(BackendFailed, match="loading polly failed: UNAVAILABLE"),
    ):
        await engine.load(ReplicaEndpoint(process.address), _parrot("echo_load_crash:SIGKILL"), Place())


async def test_load_into_a_port_from_which_nothing_comes_back_is_the_nodes_trouble(
    engine: GrpcEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.upstreams.http2.limits.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = ReplicaEndpoint(f"127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(NodeUnreachable, match="cannot be reached: it did not answer"):
            await engine.load(endpoint, PARROT, Place())


async def test_load_into_a_closed_port_is_the_backends_failure(engine: GrpcEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(BackendFailed, match="UNAVAILABLE: connection refused"):
        await engine.load(ReplicaEndpoint(address), PARROT, Place())


async def test_a_load_ends_when_nobody_waits_for_it(engine: GrpcEngine) -> None:
    calls = Open()

    async def endless(request: pb.ModelOptions, context: Any) -> pb.Result:
        with calls.counted():
            await anyio.sleep_forever()
            return pb.Result()

    async with scripted(LoadModel=endless) as address:
        with anyio.move_on_after(0.2) as scope:
            await engine.load(ReplicaEndpoint(address), PARROT, Place())
        await wait_until(lambda: not calls.now, what="the end of the load at the backend")

    assert (scope.cancelled_caught, calls.ever) == (True, 1)


async def test_a_backend_that_answers_is_healthy(engine: GrpcEngine, tmp_path: Path) -> None:
    with running(tmp_path) as process:
        assert await engine.healthy(ReplicaEndpoint(process.address)) is True


async def test_a_backend_whose_port_is_closed_is_not_healthy(engine: GrpcEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    assert await engine.healthy(ReplicaEndpoint(address)) is False
    assert await engine.healthy(ReplicaEndpoint(address, protocol="http")) is False


@pytest.mark.parametrize("protocol", ["", "http"])
async def test_of_a_backend_behind_a_name_that_is_not_resolved_nothing_is_known(
    engine: GrpcEngine, protocol: str
) -> None:
    assert await engine.healthy(ReplicaEndpoint("nowhere.invalid:1", protocol=protocol)) is None


async def test_a_backend_that_does_not_say_is_busy_not_dead(
    engine: GrpcEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(request: pb.HealthMessage, context: Any) -> pb.Reply:
        await anyio.sleep_forever()
        return pb.Reply()

    monkeypatch.setattr("remuda.upstreams.grpc.limits.HEALTH_S", 0.2)
    async with scripted(Health=hanging) as hangs, scripted() as knows_no_such_call:
        assert await engine.healthy(ReplicaEndpoint(hangs)) is None
        assert await engine.healthy(ReplicaEndpoint(knows_no_such_call)) is None


async def test_a_server_that_speaks_http_is_loaded_when_it_answers(
    engine: GrpcEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.upstreams.grpc.limits.HTTP_POLL_S", 0.01)
    async with _http_server(503, 503, 404, 200) as (address, asked):
        endpoint = ReplicaEndpoint(address, protocol="http", path="/door", token="secret")
        with anyio.fail_after(10):
            await engine.load(endpoint, PARROT, Place())
            assert await engine.healthy(endpoint) is True

    assert asked[:4] == ["/door/health"] * 3 + ["/door/v1/models"]


async def test_a_server_that_refuses_the_token_has_failed(engine: GrpcEngine) -> None:
    async with _http_server(401) as (address, _):
        with pytest.raises(BackendFailed, match="does not let this frontend in"):
            await engine.load(ReplicaEndpoint(address, protocol="http"), PARROT, Place())


async def test_a_server_that_its_worker_says_is_not_there_is_gone(
    engine: GrpcEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.upstreams.grpc.limits.HTTP_POLL_S", 0.01)
    monkeypatch.setattr("remuda.upstreams.grpc.limits.HTTP_MISSING_S", 0.05)
    async with _http_server(503, refusal="not_ready") as (address, _):
        endpoint = ReplicaEndpoint(address, protocol="http", path="/door")
        assert await engine.healthy(endpoint) is False
        with anyio.fail_after(10), pytest.raises(BackendFailed, match="ended before it answered"):
            await engine.load(endpoint, PARROT, Place())


@asynccontextmanager
async def _http_server(*statuses: int, refusal: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """Answers with these, then with the last one; and what it was asked for. `refusal`: of a worker."""
    header = f"X-Remuda-Refusal: {refusal}\r\n".encode() if refusal else b""
    asked: list[str] = []

    async def handle(stream: SocketStream) -> None:
        async with stream:
            async for head in stream:
                asked.append(head.split()[1].decode())
                status = statuses[min(len(asked), len(statuses)) - 1]
                await stream.send(b"HTTP/1.1 %d Word\r\n%sContent-Length: 2\r\n\r\n{}" % (status, header))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}", asked
        group.cancel_scope.cancel()
