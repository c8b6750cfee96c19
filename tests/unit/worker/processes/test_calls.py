"""Calls to backends: each kind of answer, and of silence, is told apart in words."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.abc
import grpc
import grpc.aio
import pytest

from remuda.host.ports import free_port
from remuda.rpc import backend_pb2, backend_pb2_grpc
from remuda.worker.processes.calls import BackendCalls
from remuda.worker.processes.model import GRPC_TOKEN_VARIABLE, BackendTimeouts, HealthResult, Protocol, Recipe
from remuda.worker.processes.ports import Backends

pytestmark = pytest.mark.anyio

GRPC = Recipe(("run.sh",), Path("/"), {})
HTTP = Recipe(("serve",), Path("/"), {}, protocol=Protocol.HTTP, health_path="/v1/health")
WELL = HealthResult(healthy=True)
CALLS: Backends = BackendCalls()
SHORT = timedelta(seconds=0.3)
IMPATIENT: Backends = BackendCalls(BackendTimeouts(call=SHORT, free=SHORT))


def opened_by(token: str) -> Recipe:
    return replace(GRPC, env={GRPC_TOKEN_VARIABLE: token})


class Servicer(backend_pb2_grpc.BackendServicer):  # type: ignore[misc] # Generated code has no types.
    """Answers as it is told, to those who bring its token."""

    def __init__(self, token: str = "", health: bytes = b"OK") -> None:
        self.token = token
        self.health = health
        self.freed = 0
        self.result = backend_pb2.Result(success=True)

    async def Health(self, request: object, context: grpc.aio.ServicerContext) -> object:
        await self._check(context)
        return backend_pb2.Reply(message=self.health)

    async def Free(self, request: object, context: grpc.aio.ServicerContext) -> object:
        await self._check(context)
        self.freed += 1
        return self.result

    async def _check(self, context: grpc.aio.ServicerContext) -> None:
        metadata = dict(context.invocation_metadata())
        if self.token and metadata.get("authorization") != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid token")


@asynccontextmanager
async def serving(servicer: Servicer, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    backend_pb2_grpc.add_BackendServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives one answer to all, with what it was asked."""
    asked: list[bytes] = []

    async def reply(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream):  # Somebody only looked whether anyone listens.
                asked.append(await stream.receive())
                await stream.send(answer)

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, reply)
        yield listener.extra(anyio.abc.SocketAttribute.local_port), asked
        tasks.cancel_scope.cancel()


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def unused() -> int:
    return free_port("127.0.0.1")


# gRPC


async def test_a_backend_that_says_ok_is_well() -> None:
    async with serving(Servicer()) as port:
        assert await CALLS.health(port, GRPC) == WELL


async def test_another_answer_is_quoted() -> None:
    async with serving(Servicer(health=b"not yet")) as port:
        assert await CALLS.health(port, GRPC) == HealthResult(words="its health call answers 'not yet'")


async def test_the_token_goes_along() -> None:
    async with serving(Servicer(token="secret")) as port:
        assert await CALLS.health(port, opened_by("secret")) == WELL


@pytest.mark.parametrize("token", ["wrong", ""])
async def test_a_refused_token_is_told_apart_from_a_refused_connection(token: str) -> None:
    async with serving(Servicer(token="secret")) as port:
        heard = await CALLS.health(port, opened_by(token))
    assert heard == HealthResult(words="it does not accept this worker's token: invalid token")


async def test_a_port_nobody_listens_on_is_refused_at_once(unused: int) -> None:
    with anyio.fail_after(10):
        heard = await CALLS.health(unused, GRPC)
    assert heard == HealthResult(refused=True, words=f"nothing listens on port {unused}")


async def test_a_port_that_was_refused_is_well_as_soon_as_it_answers(unused: int) -> None:
    for _ in range(5):
        assert (await CALLS.health(unused, GRPC)).refused
    async with serving(Servicer(), unused) as port:
        assert await CALLS.health(port, GRPC) == WELL


async def test_silence_is_not_refusal(silent: int) -> None:
    expected = HealthResult(words=f"no answer on port {silent} within 0.3 s")
    assert await IMPATIENT.health(silent, GRPC) == expected
    assert await IMPATIENT.health(silent, HTTP) == expected


@pytest.mark.parametrize("recipe", [GRPC, HTTP], ids=["grpc", "http"])
async def test_a_call_cut_short_ends_its_scope_and_nothing_else(silent: int, recipe: Recipe) -> None:
    with anyio.move_on_after(0.1) as scope:
        await CALLS.health(silent, recipe)
    assert scope.cancelled_caught
    # Also waits for what gRPC still has to say of the first call, which the next test's loop must not hear.
    async with serving(Servicer()) as port:
        assert (await CALLS.health(port, GRPC)).healthy


async def test_what_does_not_speak_grpc_is_told_apart() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, _):
        heard = await CALLS.health(port, GRPC)
    assert not heard.healthy
    assert not heard.refused
    assert f"what listens on port {port} does not speak gRPC" in heard.words


# Free


async def test_free_is_asked_for_once() -> None:
    servicer = Servicer(token="secret")
    async with serving(servicer) as port:
        assert await CALLS.free(port, opened_by("secret")) == ""
    assert servicer.freed == 1


async def test_a_backend_that_cannot_free_says_why() -> None:
    servicer = Servicer()
    servicer.result = backend_pb2.Result(success=False, message="busy")
    async with serving(servicer) as port:
        assert await CALLS.free(port, GRPC) == "busy"


async def test_a_backend_without_free_is_told_apart() -> None:
    async with serving(Without()) as port:
        assert await CALLS.free(port, GRPC) == "it has no such call"


class Without(Servicer):
    async def Free(self, request: object, context: grpc.aio.ServicerContext) -> object:
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")


async def test_freeing_has_a_limit(silent: int, unused: int) -> None:
    assert await IMPATIENT.free(silent, GRPC) == f"no answer on port {silent} within 0.3 s"
    assert await CALLS.free(unused, GRPC) == f"nothing listens on port {unused}"


async def test_http_backends_are_not_asked_to_free(unused: int) -> None:
    assert await CALLS.free(unused, HTTP) == "HTTP backends have no such call"


# HTTP


async def test_an_http_backend_that_answers_200_is_well() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (port, asked):
        assert await CALLS.health(port, HTTP) == WELL
    assert asked[0].startswith(f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode())


async def test_an_http_backend_that_still_loads_is_quoted() -> None:
    async with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as (port, _):
        heard = await CALLS.health(port, HTTP)
    assert heard == HealthResult(words="GET /v1/health answers 503 Service Unavailable")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"", b"x" * 100_000, b"\xff\xfe\r\n"])
async def test_what_does_not_speak_http_is_told_apart(answer: bytes) -> None:
    async with answering(answer) as (port, _):
        heard = await CALLS.health(port, HTTP)
    assert not heard.healthy
    assert heard.words.startswith(f"what listens on port {port} does not speak HTTP")


async def test_an_http_port_nobody_listens_on_is_refused(unused: int) -> None:
    assert await CALLS.health(unused, HTTP) == HealthResult(
        refused=True, words=f"nothing listens on port {unused}"
    )
