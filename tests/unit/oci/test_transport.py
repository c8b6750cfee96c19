"""What is said of a registry that cannot be spoken to."""

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.oci import limits
from remuda.oci.errors import RegistryFailed
from remuda.oci.transport import Registries, open_transport

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v2/", "add {} to insecure-registries (REMUDA_INSECURE_REGISTRIES)"),
        ("/models/tiny.gguf", "give its address with http://"),
    ],
)
async def test_a_server_of_plain_http_is_named_with_what_to_change(path: str, hint: str) -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    place = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, open_transport(Registries()) as transport, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with pytest.raises(Misconfigured, match="does not speak HTTPS") as refused:
            async with transport.request("GET", URL(f"https://{place}{path}")):
                pass
        tasks.cancel_scope.cancel()

    assert hint.format(place) in refused.value.hint


@pytest.mark.parametrize(
    ("hang_up", "why"), [(True, "the connection was closed"), (False, "no answer within 0.2 s")]
)
async def test_a_registry_that_never_answers_over_tls_is_told_with_a_reason_and_the_setting(
    hang_up: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            if not hang_up:
                await anyio.sleep_forever()

    monkeypatch.setattr(limits, "CONNECT_S", 0.2)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    place = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, open_transport(Registries()) as transport, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with pytest.raises(RegistryFailed) as failed:
            async with transport.request("GET", URL(f"https://{place}/v2/")):
                pass
        tasks.cancel_scope.cancel()

    assert failed.value.message == f"{place} cannot be reached: {why}"
    assert f"add {place} to insecure-registries (REMUDA_INSECURE_REGISTRIES)" in failed.value.hint


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/meta-data", "http://[fe80::1]/", "http://224.0.0.1/"]
)
async def test_a_registry_cannot_send_us_to_where_it_does_not_lie_itself(target: str) -> None:
    async def redirect(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(
                f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
            )

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    registry = URL(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v2/")
    async with listener, open_transport(Registries()) as transport, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, redirect)
        with pytest.raises(Misconfigured, match="is not asked: it leads to") as refused:
            async with transport.request("GET", registry):
                pass
        assert f"it leads to {URL(target).host}" in refused.value.message
        assert f"add {URL(target).authority} to insecure-registries" in refused.value.hint
        with pytest.raises(Misconfigured, match="is not asked: it leads to"):
            async with transport.request("GET", URL(target), named_by=registry):  # As a token server.
                pass
        tasks.cancel_scope.cancel()


async def test_a_registry_elsewhere_cannot_send_us_to_this_machine_but_to_what_the_settings_name() -> None:
    async def answer(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    elsewhere = URL("https://registry.example/v2/")
    named = Registries(insecure=frozenset({f"127.0.0.1:{port}"}))
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            async with open_transport(Registries()) as transport:
                with pytest.raises(Misconfigured, match="a loopback address"):
                    async with transport.request("GET", URL(f"http://{host}:{port}/"), named_by=elsewhere):
                        pass
        async with (
            open_transport(named) as transport,
            transport.request("GET", URL(f"http://127.0.0.1:{port}/"), named_by=elsewhere) as response,
        ):
            assert response.status == 200
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"this is not HTTP\r\n\r\n", "sent an answer that is not valid HTTP"),
        (b"", "closed the connection without an answer"),
    ],
)
async def test_a_server_that_breaks_the_protocol_is_told_in_plain_words(answer: bytes, words: str) -> None:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            if answer:
                await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    place = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, open_transport(Registries()) as transport, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with pytest.raises(RegistryFailed) as failed:
            async with transport.request("GET", URL(f"http://{place}/m.gguf")):
                pass
        tasks.cancel_scope.cancel()

    assert failed.value.message == f"{place} {words}"
