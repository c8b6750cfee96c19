"""The HTTP client: each failure becomes words a person can act on, and none of them tells a secret."""

import ssl
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
import trustme
from anyio.abc import SocketAttribute, SocketStream
from pydantic import SecretStr

from remuda.core.errors import (
    Conflict,
    FrontendUnreachable,
    Invalid,
    Misconfigured,
    NotFound,
    RemudaError,
    Unauthorized,
)
from remuda.core.ids import NodeId
from remuda.host.ports import free_port
from remuda.wire.nodes import Departure, Heartbeat, RegisterRequest
from remuda.worker.frontend import Frontend
from tests.peers.localai_frontend import LocalAiFrontend

pytestmark = pytest.mark.anyio

ME = RegisterRequest(name="gpu-1", address="127.0.0.1:50051")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def serving_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_a_node_registers_reports_drains_and_leaves() -> None:
    async with LocalAiFrontend(token="s3cret") as peer:
        # A frontend that knows of no secrets is called with the shared token.
        client = Frontend(peer.url + "/", SecretStr("s3cret"), secret=SecretStr("rmn_" + "x" * 40))
        reply = await client.register(ME)
        node = NodeId(reply.id)
        await client.heartbeat(node, Heartbeat(available_ram=1))
        await client.drain(node, Departure())
        assert list(await client.models(node)) == []
        await client.deregister(node, Departure())
        await client.aclose()
    assert peer.actions == ["register", "heartbeat", "drain", "models", "deregister"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (302, FrontendUnreachable),
        (429, FrontendUnreachable),
        (500, FrontendUnreachable),
        (503, FrontendUnreachable),
    ],
)
async def test_each_status_has_its_meaning(status: int, error: type[RemudaError]) -> None:
    async with LocalAiFrontend() as peer:
        peer.misbehaviour["heartbeat"] = status
        client = Frontend(peer.url, None)
        with pytest.raises(error):
            await client.heartbeat(NodeId("n1"), Heartbeat())
        await client.aclose()


async def test_a_server_without_node_api_may_be_the_right_one_later() -> None:
    async with LocalAiFrontend() as peer:
        client = Frontend(peer.url + "/elsewhere", None)
        with pytest.raises(FrontendUnreachable, match="no registration endpoint"):
            await client.register(ME)
        await client.aclose()


async def test_what_is_not_a_frontend_is_said_not_to_be_one() -> None:
    async with LocalAiFrontend() as peer:
        peer.misbehaviour["register"] = 200
        client = Frontend(peer.url, None)
        with pytest.raises(FrontendUnreachable, match="is not a frontend"):
            await client.register(ME)
        await client.aclose()


async def test_nobody_there_is_said_without_the_token() -> None:
    client = Frontend(f"http://127.0.0.1:{free_port('127.0.0.1')}", SecretStr("t0ken"))
    with pytest.raises(
        FrontendUnreachable, match=r"reached: connection refused: nothing listens there$"
    ) as refusal:
        await client.register(ME)
    await client.aclose()
    assert "t0ken" not in str(refusal.value)


async def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(Misconfigured, match="--token") as refusal:
        Frontend("http://me:hunter2@frontend", None)
    assert "hunter2" not in str(refusal.value)


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    async with LocalAiFrontend() as peer:
        peer.misbehaviour["drain"] = "hang"
        client = Frontend(peer.url, None, call_limit=timedelta(milliseconds=200))
        with anyio.fail_after(5), pytest.raises(FrontendUnreachable, match="did not answer"):
            await client.drain(NodeId("n1"), Departure())
        await client.aclose()


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    async with LocalAiFrontend(tls=serving_tls(authority)) as peer:
        client = Frontend(peer.url, None)
        with pytest.raises(FrontendUnreachable, match="--ca"):
            await client.register(ME)
        await client.aclose()


async def test_a_certificate_of_another_authority_than_the_named_is_refused(
    authority: trustme.CA, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    async with LocalAiFrontend(tls=serving_tls(authority)) as peer:
        client = Frontend(peer.url, None, tmp_path / "other.pem")
        with pytest.raises(FrontendUnreachable, match=r"its certificate was not signed by .*/other\.pem;"):
            await client.register(ME)
        await client.aclose()


async def test_an_unknown_host_is_told_in_words() -> None:
    client = Frontend("http://no-such-host.invalid", None)
    with pytest.raises(FrontendUnreachable, match="cannot be reached: unknown host"):
        await client.register(ME)
    await client.aclose()


async def test_a_server_of_another_protocol_is_told_in_words() -> None:
    async def say(stream: SocketStream) -> None:
        async with stream:
            await stream.send(b'INFO {"server_id":"NA","client_id":7}\r\n')
            await stream.receive()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    client = Frontend(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}", None)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, say)
        with pytest.raises(FrontendUnreachable, match=r"cannot be reached: it does not speak HTTP$"):
            await client.register(ME)
        await client.aclose()
        tasks.cancel_scope.cancel()


async def test_a_certificate_of_the_named_authority_is_accepted(
    authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with LocalAiFrontend(tls=serving_tls(authority)) as peer:
        client = Frontend(peer.url, None, tmp_path / "ca.pem")
        assert (await client.register(ME)).status == "healthy"
        await client.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "frontend:8080",
        "ftp://frontend",
        "http://",
        "http://h:x",
        "http://h:0",
        "http://[::1",
        "http://xn--",
        "http://frontend\n",
    ],
)
async def test_a_url_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured, match="HOST"):
        Frontend(url, None)


async def test_a_token_of_several_lines_is_refused_and_not_repeated() -> None:
    with pytest.raises(Misconfigured, match="--token") as refusal:
        Frontend("http://frontend", SecretStr("first\nsecond"))
    assert "second" not in str(refusal.value)


async def test_a_token_may_hold_any_letter() -> None:
    async with LocalAiFrontend() as peer:
        client = Frontend(peer.url, SecretStr("schlüssel"))
        await client.register(ME)
        await client.aclose()
    assert peer.calls[0].authorization == "Bearer schlüssel"


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_unusable_authority_is_refused_at_once(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(Misconfigured, match="--ca"):
        Frontend("https://frontend", None, tmp_path / "ca.pem")


async def test_an_answer_without_end_is_not_read_to_the_end() -> None:
    async def pour(caller: SocketStream) -> None:
        async with caller:
            await caller.receive()
            await caller.send(b"HTTP/1.1 200 OK\r\n\r\n")
            with suppress(anyio.BrokenResourceError):
                while True:
                    await caller.send(bytes(1 << 16))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as door:
        client = Frontend(f"http://127.0.0.1:{door.extra(SocketAttribute.local_port)}", None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.serve, pour)
            with anyio.fail_after(5), pytest.raises(FrontendUnreachable, match="is not a frontend"):
                await client.register(ME)
            tasks.cancel_scope.cancel()
        await client.aclose()
